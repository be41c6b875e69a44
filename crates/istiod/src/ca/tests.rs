use std::{collections::BTreeMap, path::Path, time::Duration};

use security::{PrivateKey, identities_of, parse_certificates, sign_request, validity};
use tonic::{Code, client, codegen::http::uri::PathAndQuery};

use super::*;
use crate::{
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

fn service() -> Guarded<CertificateService> {
    let nowhere = Path::new("/nonexistent");
    let store = AuthorityStore::open(nowhere, None, "cluster.local", 365 * DAY, now()).unwrap();
    let service = CertificateService::new(Signing {
        store: Arc::new(store),
        lifetimes: Lifetimes::default(),
        trust_domain: Box::new(|| "cluster.local".to_owned()),
        clock: now,
    });
    let message = "request authenticate failure";
    let tokens = Tokens::default();
    Guarded::new(service.unwrap(), Demand::Identity, message, tokens, now)
}

fn request() -> IstioCertificateRequest {
    IstioCertificateRequest {
        csr: sign_request(&PrivateKey::generate().unwrap()).unwrap(),
        validity_duration: 3600,
        metadata: None,
    }
}

async fn ask(
    identities: &[&str],
    message: IstioCertificateRequest,
) -> Result<IstioCertificateResponse, Status> {
    let mut client = client::Grpc::new(service());
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    request.extensions_mut().insert(SecurePeer {
        address: None,
        identities: identities.iter().map(|id| id.parse().unwrap()).collect(),
    });
    let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
    let path = PathAndQuery::from_static(messages::METHOD);
    Ok(client.unary(request, path, codec).await?.into_inner())
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
    let mut other = request();
    other.metadata = Some(prost_types::Struct {
        fields: BTreeMap::from([(IMPERSONATED.to_owned(), prost_types::Value::default())]),
    });
    check(
        ask(&[ID], other).await,
        Code::Unauthenticated,
        "impersonation",
    );
    let mut huge = request();
    huge.csr = "x".repeat(RECEIVE_BYTES);
    check(ask(&[ID], huge).await, Code::OutOfRange, "");
}
