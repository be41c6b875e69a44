//! Proxies that follow the endpoints, and what they have seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{Node, address::Address},
            endpoint::v3::{ClusterLoadAssignment, lb_endpoint::HostIdentifier},
        },
        service::discovery::v3::{
            DeltaDiscoveryRequest,
            aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
        },
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use prost::Message as _;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    PROXIES,
    script::{END, OTHERS, Of, PORTS, cluster, other_name, version_of},
};

const ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// What all proxies have seen since the start.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    inner: Mutex<Inner>,
}

#[derive(Default, Debug)]
struct Inner {
    /// Proxies that have all that they asked for.
    first: BTreeSet<usize>,
    /// By another service: its versions and since when they are to come.
    expected: BTreeMap<usize, Vec<(usize, Instant)>>,
    /// By proxy and other service: the version it has.
    versions: BTreeMap<(usize, usize), usize>,
    /// By proxy and port: how many pods of the storm it has.
    pods: BTreeMap<(usize, u16), usize>,
    waits: Vec<Duration>,
    received: [(u64, u64); 2],
    last: [Option<Instant>; 2],
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many proxies have all that they asked for.
    pub(crate) fn first(&self) -> usize {
        self.lock().first.len()
    }

    /// Counts from now on.
    pub(crate) fn forget(&self) {
        let mut inner = self.lock();
        inner.received = Default::default();
        inner.last = Default::default();
    }

    /// Another service has a version since `due`.
    pub(crate) fn expect(&self, service: usize, version: usize, due: Instant) {
        let mut inner = self.lock();
        let versions = inner.expected.entry(service).or_default();
        versions.push((version, due));
    }

    /// Tells what some proxy does not have yet.
    pub(crate) fn is_done(&self, with_storm: bool) -> Result<(), String> {
        let inner = self.lock();
        for proxy in 0..PROXIES {
            for (service, versions) in &inner.expected {
                let has = inner.versions.get(&(proxy, *service)).copied();
                let newest = versions.last().map(|(version, _)| *version);
                if has < newest {
                    return Err(format!(
                        "proxy {proxy} has {has:?} of {service}, not {newest:?}"
                    ));
                }
            }
            for port in 0..PORTS {
                let has = inner.pods.get(&(proxy, port)).copied();
                if with_storm && has != Some(END) {
                    return Err(format!("proxy {proxy} has {has:?} pods of port {port}"));
                }
            }
        }
        Ok(())
    }

    /// From each change of another service to each proxy.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.lock().waits.clone()
    }

    /// Assignments and bytes, of the others and of the storm.
    pub(crate) fn received(&self) -> [(u64, u64); 2] {
        self.lock().received
    }

    /// When somebody got the last one.
    pub(crate) fn last(&self, of: usize) -> Option<Instant> {
        self.lock().last[of]
    }

    fn on_assignment(&self, proxy: usize, names: &Names, name: &str, body: &[u8]) -> Result<()> {
        let now = Instant::now();
        let addresses = addresses(body)?;
        let whose = names.get(name).context("an unknown cluster")?;
        let inner = &mut *self.lock();
        let of = match whose {
            Whose::Storm(port) => {
                inner.pods.insert((proxy, *port), addresses.len());
                Of::Storm
            }
            Whose::Other(service) => {
                let new = addresses.iter().find_map(|a| version_of(a));
                if let Some(new) = new {
                    let old = inner.versions.insert((proxy, *service), new).unwrap_or(0);
                    let versions = inner.expected.get(service).into_iter().flatten();
                    let come = versions.filter(|(version, _)| (old + 1..=new).contains(version));
                    let waits = come.map(|(_, due)| now.saturating_duration_since(*due));
                    inner.waits.extend(waits);
                }
                Of::Others
            }
        };
        let (resources, bytes) = &mut inner.received[of as usize];
        *resources += 1;
        *bytes += body.len() as u64;
        inner.last[of as usize] = Some(now);
        Ok(())
    }
}

/// Whose endpoints an assignment has.
#[derive(Debug)]
enum Whose {
    Storm(u16),
    Other(usize),
}

type Names = BTreeMap<String, Whose>;

fn names() -> Names {
    let storm = (0..PORTS).map(|port| (cluster("storm", port), Whose::Storm(port)));
    let others = (0..OTHERS).map(|n| (cluster(&other_name(n), 0), Whose::Other(n)));
    storm.chain(others).collect()
}

fn addresses(body: &[u8]) -> Result<Vec<String>> {
    let assignment = ClusterLoadAssignment::decode(body)?;
    let endpoints = assignment
        .endpoints
        .into_iter()
        .flat_map(|l| l.lb_endpoints);
    let addresses = endpoints.filter_map(|endpoint| {
        let Some(HostIdentifier::Endpoint(endpoint)) = endpoint.host_identifier else {
            return None;
        };
        match endpoint.address?.address? {
            Address::SocketAddress(address) => Some(address.address),
            _ => None,
        }
    });
    Ok(addresses.collect())
}

/// Follows all endpoints over a delta stream, until it ends.
pub(crate) async fn follow(server: SocketAddr, number: usize, seen: Arc<Seen>) -> Result<()> {
    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{server}"))
        .await?
        .max_decoding_message_size(usize::MAX);
    let names = names();
    let (requests, receiver) = mpsc::channel(16);
    requests
        .send(DeltaDiscoveryRequest {
            node: Some(node(number)),
            type_url: ENDPOINT.to_owned(),
            resource_names_subscribe: names.keys().cloned().collect(),
            ..DeltaDiscoveryRequest::default()
        })
        .await?;
    let call = client.delta_aggregated_resources(ReceiverStream::new(receiver));
    let mut responses = call.await?.into_inner();
    let mut has = BTreeSet::new();
    while let Some(response) = responses.message().await? {
        for resource in &response.resources {
            let body = resource.resource.as_ref().context("an empty resource")?;
            seen.on_assignment(number, &names, &resource.name, &body.value)?;
            has.insert(resource.name.clone());
        }
        let ack = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(ack).await?;
        if has.len() == names.len() {
            seen.lock().first.insert(number);
        }
    }
    Ok(())
}

fn node(number: usize) -> Node {
    let text = |value: &str| Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    };
    let namespace = format!("n{number}");
    let fields = [
        ("NAMESPACE", text(&namespace)),
        ("CLUSTER_ID", text("Kubernetes")),
        ("ISTIO_VERSION", text("1.30.0")),
    ];
    Node {
        id: format!("sidecar~10.250.0.{number}~p.{namespace}~{namespace}.svc.cluster.local"),
        cluster: format!("p.{namespace}"),
        metadata: Some(Struct {
            fields: fields.map(|(name, value)| (name.to_owned(), value)).into(),
        }),
        ..Node::default()
    }
}
