use std::{collections::BTreeMap, future::Future, path::Path, pin::Pin, time::Duration};

use security::{
    Holder, PrivateKey, TokenError, TokenReview, Unreviewed, identities_of, parse_certificates,
    sign_request, validity,
};
use tonic::{Code, client, codegen::http::uri::PathAndQuery};

use super::*;
use crate::{
    metrics::Metrics,
    tls::{
        accept::SecurePeer,
        guard::{Demand, Guarded},
    },
    tokens::Tokens,
};

const DAY: Duration = Duration::from_hours(24);
const ID: &str = "spiffe://old.domain/ns/a/sa/b";

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

fn service(metrics: &CertificateMetrics) -> Guarded<CertificateService> {
    let nowhere = Path::new("/nonexistent");
    let store = AuthorityStore::open(nowhere, None, "cluster.local", 365 * DAY, now()).unwrap();
    let service = CertificateService::new(Signing {
        store: Arc::new(store),
        lifetimes: Lifetimes::default(),
        state: Arc::new(nodes::tests::state),
        agents: vec![nodes::tests::trusted()],
        metrics: metrics.clone(),
        clock: now,
    });
    let message = "request authenticate failure";
    let tokens = Tokens::of([Arc::new(AgentToken) as Arc<dyn TokenReview>]);
    Guarded::new(service.unwrap(), Demand::Identity, message, tokens, now).counting(metrics.clone())
}

/// Takes the token `agent` for that of a node agent.
#[derive(Debug)]
struct AgentToken;

impl TokenReview for AgentToken {
    fn review<'a>(
        &'a self,
        token: &'a str,
        _now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>> {
        Box::pin(async move {
            if token != "agent" {
                return Err(TokenError::Signature.into());
            }
            Ok(Holder {
                identity: nodes::tests::AGENT.parse().unwrap(),
                pod: Some(BoundPod {
                    name: "ztunnel-1".to_owned(),
                    uid: "of-ztunnel-1".to_owned(),
                }),
            })
        })
    }
}

fn request() -> IstioCertificateRequest {
    IstioCertificateRequest {
        csr: sign_request(&PrivateKey::generate().unwrap()).unwrap(),
        validity_duration: 3600,
        metadata: None,
    }
}

/// Asks with a certificate of these identities, or with a token.
async fn ask_counted(
    metrics: &CertificateMetrics,
    identities: &[&str],
    token: Option<&str>,
    message: IstioCertificateRequest,
) -> Result<IstioCertificateResponse, Status> {
    let mut client = client::Grpc::new(service(metrics));
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    request.extensions_mut().insert(SecurePeer {
        address: None,
        identities: identities.iter().map(|id| id.parse().unwrap()).collect(),
    });
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
    let path = PathAndQuery::from_static(messages::METHOD);
    Ok(client.unary(request, path, codec).await?.into_inner())
}

fn metrics() -> CertificateMetrics {
    Metrics::new().unwrap().certificates
}

async fn ask(
    identities: &[&str],
    message: IstioCertificateRequest,
) -> Result<IstioCertificateResponse, Status> {
    ask_counted(&metrics(), identities, None, message).await
}

fn impersonating(value: Kind) -> IstioCertificateRequest {
    let value = prost_types::Value { kind: Some(value) };
    IstioCertificateRequest {
        metadata: Some(prost_types::Struct {
            fields: BTreeMap::from([(IMPERSONATED.to_owned(), value)]),
        }),
        ..request()
    }
}

#[tokio::test]
async fn an_agent_gets_the_certificates_of_its_node() {
    let of = |id: &str| impersonating(Kind::StringValue(id.to_owned()));
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    let response = ask_counted(&metrics(), &[], Some("agent"), of(web)).await;
    let leaf = &parse_certificates(response.unwrap().cert_chain[0].as_bytes()).unwrap()[0];
    let own: Vec<String> = identities_of(leaf)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(own, [web]);
    // Its own it gets as everybody does.
    let response = ask_counted(&metrics(), &[], Some("agent"), request()).await;
    let leaf = &parse_certificates(response.unwrap().cert_chain[0].as_bytes()).unwrap()[0];
    assert_eq!(identities_of(leaf)[0].to_string(), nodes::tests::AGENT);

    let message = "request impersonation authentication failure";
    let metrics = metrics();
    for wanted in [
        Kind::StringValue("spiffe://cluster.local/ns/shop/sa/cart".to_owned()),
        Kind::StringValue("somebody".to_owned()),
        Kind::StringValue(String::new()),
        Kind::NumberValue(1.0),
    ] {
        let answer = ask_counted(&metrics, &[], Some("agent"), impersonating(wanted)).await;
        check(answer, Code::Unauthenticated, message);
    }
    // A certificate does not say on which node its pod runs.
    let answer = ask_counted(&metrics, &[nodes::tests::AGENT], None, of(web)).await;
    check(answer, Code::Unauthenticated, message);
    let answer = ask_counted(&metrics, &[], Some("other"), of(web)).await;
    check(
        answer,
        Code::Unauthenticated,
        "request authenticate failure",
    );
    assert_eq!(metrics.counts(), [6, 0, 6, 0, 3]);
}

#[tokio::test]
async fn requests_are_counted() {
    let metrics = metrics();
    let good = ask_counted(&metrics, &[ID], None, request()).await;
    good.unwrap();
    let mut broken = request();
    broken.csr = "no request".to_owned();
    let bad = ask_counted(&metrics, &[ID], None, broken).await;
    bad.unwrap_err();
    assert_eq!(metrics.counts(), [2, 1, 0, 1, 0]);
}

#[tokio::test]
async fn a_caller_gets_a_certificate_for_itself_in_the_trust_domain_of_now() {
    let response = ask(&[ID], request()).await.unwrap();
    let [leaf, root] = &response.cert_chain[..] else {
        panic!("{response:?}")
    };
    let leaf = &parse_certificates(leaf.as_bytes()).unwrap()[0];
    let own = identities_of(leaf);
    assert_eq!(own[0].to_string(), "spiffe://cluster.local/ns/a/sa/b");
    assert_eq!(own.len(), 1);
    assert_eq!(validity(leaf).unwrap().1, now() + Duration::from_hours(1));
    assert_eq!(parse_certificates(root.as_bytes()).unwrap().len(), 1);
}

#[track_caller]
fn check(answer: Result<IstioCertificateResponse, Status>, code: Code, part: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(part), "{status:?}");
}

#[tokio::test]
async fn what_is_refused() {
    let nobody = ask(&[], request()).await;
    check(
        nobody,
        Code::Unauthenticated,
        "request authenticate failure",
    );
    let mut long = request();
    long.validity_duration = 91 * 86400;
    check(ask(&[ID], long).await, Code::InvalidArgument, "is the most");
    let mut broken = request();
    broken.csr = "no request".to_owned();
    check(
        ask(&[ID], broken).await,
        Code::InvalidArgument,
        "no signing request",
    );
    let other = "spiffe://cluster.local/ns/shop/sa/web".to_owned();
    let other = impersonating(Kind::StringValue(other));
    check(
        ask(&[ID], other).await,
        Code::Unauthenticated,
        "impersonation",
    );
    let mut huge = request();
    huge.csr = "x".repeat(RECEIVE_BYTES);
    check(ask(&[ID], huge).await, Code::OutOfRange, "");
}
