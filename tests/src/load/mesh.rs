//! The mesh that is served, one file for each service, and the changes to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use envoy_types::pb::envoy::config::core::v3::{Locality, Node};
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};
use serde_json::{Value as Json, json};

/// A synthetic mesh in a folder.
#[derive(Debug)]
pub(super) struct Mesh {
    folder: PathBuf,
    services: usize,
    endpoints: usize,
    classes: usize,
    form: Form,
    /// Namespaces that the services live in; those of the proxies are the first of them.
    namespaces: usize,
}

/// What the services of the mesh are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Services and EndpointSlices, as a cluster has them.
    #[default]
    Kubernetes,
    /// ServiceEntries, for servers that read only Istio's objects from a folder.
    ServiceEntries,
}

/// A pod of a service: its number, which its address follows from.
pub(super) type Pod = usize;

/// As many pods a service may have, so that those that replace them have addresses too.
pub(super) const MOST_ENDPOINTS: usize = 100;

impl Mesh {
    pub(super) fn new(folder: &Path, options: &super::Options) -> Self {
        Self {
            folder: folder.to_owned(),
            services: options.services.clamp(1, 1 << 16),
            endpoints: options.endpoints.clamp(1, MOST_ENDPOINTS),
            classes: options.classes.max(1),
            form: options.form,
            namespaces: options.classes.max(1),
        }
    }

    /// Spreads the services over so many namespaces.
    pub(super) fn over_namespaces(self, namespaces: usize) -> Self {
        Self {
            namespaces: namespaces.max(1),
            ..self
        }
    }

    /// Writes all of it.
    pub(super) fn write(&self) -> Result<()> {
        for service in 0..self.services {
            self.write_service(service, &self.pods())?;
        }
        Ok(())
    }

    /// Returns the pods that every service starts with.
    pub(super) fn pods(&self) -> Vec<Pod> {
        (0..self.endpoints).collect()
    }

    /// Returns the pods that replace [those](Self::pods).
    pub(super) fn new_pods(&self) -> Vec<Pod> {
        self.pods().into_iter().map(|p| self.successor(p)).collect()
    }

    /// Returns the pod that replaces another; it is replaced by that one in turn.
    pub(super) fn successor(&self, pod: Pod) -> Pod {
        (pod + self.endpoints) % (2 * self.endpoints)
    }

    /// Returns a service to change, in turn.
    pub(super) fn service(&self, change: usize) -> usize {
        change * 7 % self.services
    }

    /// Gives a service these pods.
    pub(super) fn write_service(&self, service: usize, pods: &[Pod]) -> Result<()> {
        let (namespace, name) = (self.namespace(service), format!("svc-{service}"));
        let address = |n: &Pod| format!("10.{}.{}.{}", 1 + n, service >> 8 & 255, service & 255);
        // 240.0.0.0/4 is nobody's, and above all pods.
        let vip = format!("240.0.{}.{}", service >> 8 & 255, service & 255);
        let objects = match self.form {
            Form::Kubernetes => {
                let labels = json!({"kubernetes.io/service-name": name});
                let endpoints: Vec<Json> = pods
                    .iter()
                    .map(|n| json!({"addresses": [address(n)], "conditions": {"ready": true}}))
                    .collect();
                vec![
                    json!({"apiVersion": "v1", "kind": "Service",
                        "metadata": {"namespace": namespace, "name": name},
                        "spec": {"clusterIP": vip, "clusterIPs": [vip], "selector": {"app": name},
                            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}}),
                    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                        "metadata": {"namespace": namespace, "name": format!("{name}-1"), "labels": labels},
                        "addressType": "IPv4", "endpoints": endpoints,
                        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]}),
                ]
            }
            Form::ServiceEntries => {
                let endpoints: Vec<Json> = pods
                    .iter()
                    .map(|n| json!({"address": address(n)}))
                    .collect();
                vec![
                    json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
                    "metadata": {"namespace": namespace, "name": name},
                    "spec": {"hosts": [self.host(service)], "addresses": [vip],
                        "location": "MESH_INTERNAL", "resolution": "STATIC",
                        "ports": [{"number": 80, "targetPort": 8080, "name": "http", "protocol": "HTTP"}],
                        "endpoints": endpoints}}),
                ]
            }
        };
        self.put(&format!("service-{service}"), &objects)
    }

    /// Routes a service with this timeout.
    pub(super) fn write_virtual_service(&self, service: usize, seconds: usize) -> Result<()> {
        let (namespace, host) = (self.namespace(service), self.host(service));
        self.put(
            &format!("virtual-service-{service}"),
            &[
                json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                "metadata": {"namespace": namespace, "name": format!("svc-{service}")},
                "spec": {"hosts": [host], "http": [{"timeout": format!("{seconds}s"),
                    "route": [{"destination": {"host": host}}]}]}}),
            ],
        )
    }

    /// Limits the connections to a service.
    pub(super) fn write_destination_rule(&self, service: usize, connections: usize) -> Result<()> {
        let rule = self.destination_rule(service, connections);
        self.put(&format!("destination-rule-{service}"), &[rule])
    }

    /// The rule that limits the connections to a service.
    pub(super) fn destination_rule(&self, service: usize, connections: usize) -> Json {
        let (namespace, host) = (self.namespace(service), self.host(service));
        json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"namespace": namespace, "name": format!("svc-{service}")},
            "spec": {"host": host, "trafficPolicy":
                {"connectionPool": {"tcp": {"maxConnections": connections}}}}})
    }

    /// The path of the question who has that rule.
    pub(super) fn question(&self, service: usize) -> String {
        let namespace = self.namespace(service);
        format!("/debug/distribution/configs/DestinationRule/{namespace}/svc-{service}")
    }

    /// Returns nodes of the kinds of proxies in turn, each with a name of its own.
    pub(super) fn own_nodes(&self, count: usize) -> Vec<Node> {
        (0..count)
            .map(|number| node_of(&self.node(number % self.classes, &format!("load-{number}"))))
            .collect()
    }

    /// The node of a kind of proxies.
    #[expect(clippy::unused_self, reason = "a mesh has its proxies")]
    fn node(&self, class: usize, name: &str) -> Json {
        json!({"id": format!("sidecar~10.250.{}.{}~{name}.ns-{class}~ns-{class}.svc.cluster.local", class >> 8 & 255, class & 255),
            "cluster": format!("load.ns-{class}"),
            "metadata": {"NAMESPACE": format!("ns-{class}"), "CLUSTER_ID": "Kubernetes",
                "ISTIO_VERSION": "1.30.0", "LABELS": {"app": "load"}}})
    }

    /// Adds or changes an external service: it has this many endpoints.
    pub(super) fn write_service_entry(&self, number: usize, endpoints: usize) -> Result<()> {
        let endpoints: Vec<Json> = (0..endpoints)
            .map(|n| json!({"address": format!("e{n}.load.example")}))
            .collect();
        self.put(
            &format!("service-entry-{number}"),
            &[
                json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
                "metadata": {"namespace": "ns-0", "name": format!("ext-{number}")},
                "spec": {"hosts": [format!("ext-{number}.example")], "resolution": "DNS",
                    "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
                    "endpoints": endpoints}}),
            ],
        )
    }

    /// Removes an external service.
    pub(super) fn remove_service_entry(&self, number: usize) -> Result<()> {
        let file = self.folder.join(format!("service-entry-{number}.yaml"));
        fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))
    }

    /// Returns the name of the outbound cluster of a service.
    pub(super) fn cluster(&self, service: usize) -> String {
        format!("outbound|80||{}", self.host(service))
    }

    fn host(&self, service: usize) -> String {
        format!(
            "svc-{service}.{}.svc.cluster.local",
            self.namespace(service)
        )
    }

    fn namespace(&self, service: usize) -> String {
        format!("ns-{}", service % self.namespaces)
    }

    /// Writes one file at once: a reader sees the old content or the new one.
    pub(super) fn put(&self, name: &str, documents: &[Json]) -> Result<()> {
        fs::create_dir_all(&self.folder).context("make the folder")?;
        let text: Vec<String> = documents.iter().map(ToString::to_string).collect();
        let (hidden, file) = (
            self.folder.join(format!(".{name}")),
            self.folder.join(format!("{name}.yaml")),
        );
        fs::write(&hidden, text.join("\n---\n")).context("write a file")?;
        fs::rename(&hidden, &file).with_context(|| format!("write {}", file.display()))
    }

    /// Returns one node for each class: those of the files, or generated ones.
    pub(super) fn nodes(&self, files: &[PathBuf]) -> Result<Vec<Node>> {
        if !files.is_empty() {
            return files.iter().map(|file| read_node(file)).collect();
        }
        let node = |class: usize| self.node(class, "load");
        Ok((0..self.classes)
            .map(|class| node_of(&node(class)))
            .collect())
    }
}

fn read_node(file: &Path) -> Result<Node> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let json: Json =
        serde_json::from_str(&text).with_context(|| format!("read {} as JSON", file.display()))?;
    Ok(node_of(&json))
}

/// Reads a node in the form of the corpus.
fn node_of(json: &Json) -> Node {
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let locality = &json["locality"];
    Node {
        id: text(&json["id"]),
        cluster: text(&json["cluster"]),
        metadata: json["metadata"].as_object().map(struct_of),
        locality: locality.is_object().then(|| Locality {
            region: text(&locality["region"]),
            zone: text(&locality["zone"]),
            sub_zone: text(&locality["subZone"]),
        }),
        ..Node::default()
    }
}

fn struct_of(fields: &serde_json::Map<String, Json>) -> Struct {
    Struct {
        fields: fields
            .iter()
            .map(|(name, value)| (name.clone(), value_of(value)))
            .collect(),
    }
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.iter().map(value_of).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(struct_of(fields)),
    };
    Value { kind: Some(kind) }
}
