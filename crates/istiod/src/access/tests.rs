use std::{future::Future, pin::Pin};

use axum::{Extension, body::Body, routing::get};
use model::SpiffeId;
use security::{Holder, TokenError, TokenReview, Unreviewed};
use tower::ServiceExt as _;

use super::*;

/// Takes a token for the namespace that it names.
#[derive(Debug)]
struct Named;

impl TokenReview for Named {
    fn review<'a>(
        &'a self,
        token: &'a str,
        _now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>> {
        Box::pin(async move {
            match token {
                "bad" => Err(TokenError::Signature.into()),
                "down" => Err(Unreviewed::Unavailable("no answer".to_owned())),
                namespace => Ok(Holder {
                    identity: SpiffeId::new("td", namespace, "default").unwrap(),
                    pod: None,
                }),
            }
        })
    }
}

fn settings() -> ViewSettings {
    ViewSettings {
        debug: true,
        by_namespace: true,
        allowed: vec!["ops".to_owned()],
        authenticates: true,
        local_metrics: false,
    }
}

fn access(settings: ViewSettings) -> Access {
    let peers = Peers::new(&["192.0.2.7:15014".to_owned()]).unwrap();
    let tokens = Tokens::of([Arc::new(Named) as Arc<dyn TokenReview>]);
    let system = || "istio-system".into();
    Access::new(settings, system, tokens, peers, || SystemTime::UNIX_EPOCH)
}

async fn show(sight: Option<Extension<Sight>>) -> String {
    format!("{:?}", sight.map(|Extension(sight)| sight))
}

/// Asks two pages, one for those who see everything and one for all.
async fn ask(settings: ViewSettings, from: &str, authorization: &str) -> [(u16, String); 2] {
    crate::install_crypto();
    let access = access(settings);
    let router = access
        .guard(Router::new().route("/whole", get(show)), Audience::Whole)
        .merge(access.guard(Router::new().route("/own", get(show)), Audience::Own));
    let mut answers = Vec::new();
    for path in ["/whole", "/own"] {
        let mut request = Request::get(path);
        if !authorization.is_empty() {
            request = request.header("authorization", authorization);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let peer: SocketAddr = from.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 10).await;
        answers.push((status, String::from_utf8(body.unwrap().into()).unwrap()));
    }
    answers.try_into().unwrap()
}

const STRANGER: &str = "198.51.100.1:999";
const EVERYTHING: &str = "Some(Everything)";

#[track_caller]
fn check(answers: &[(u16, String); 2], whole: u16, own: u16, sight: &str) {
    let [at_whole, at_own] = answers;
    assert_eq!((at_whole.0, at_own.0), (whole, own), "{answers:?}");
    let seen = [at_whole, at_own].into_iter().filter(|a| a.0 == 200);
    for (_, body) in seen {
        assert_eq!(body, sight);
    }
    let refused = [at_whole, at_own].into_iter().filter(|a| a.0 != 200);
    for (_, body) in refused {
        assert_eq!(body, "");
    }
}

#[tokio::test]
async fn the_same_host_sees_everything() {
    for from in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.9]:1"] {
        for authorization in ["", "Bearer bad", "Bearer prod"] {
            let answers = ask(settings(), from, authorization).await;
            check(&answers, 200, 200, EVERYTHING);
        }
    }
}

#[tokio::test]
async fn others_prove_who_they_are() {
    for nothing in ["", "Bearer bad", "Bearer ", "Basic prod", "prod"] {
        let answers = ask(settings(), STRANGER, nothing).await;
        check(&answers, 401, 401, "");
    }
    let answers = ask(settings(), STRANGER, "Bearer down").await;
    check(&answers, 503, 503, "");
}

#[tokio::test]
async fn a_namespace_sees_its_own() {
    let prod = "Some(Namespace(\"prod\"))";
    for authorization in ["Bearer prod", "bearer prod", "Istio prod"] {
        let answers = ask(settings(), STRANGER, authorization).await;
        check(&answers, 403, 200, prod);
    }
    for authorization in ["Bearer istio-system", "Bearer ops"] {
        let answers = ask(settings(), STRANGER, authorization).await;
        check(&answers, 200, 200, EVERYTHING);
    }
}

#[tokio::test]
async fn settings_decide() {
    let anybody = ViewSettings {
        by_namespace: false,
        ..settings()
    };
    let answers = ask(anybody, STRANGER, "Bearer prod").await;
    check(&answers, 200, 200, EVERYTHING);
    let nobody = ViewSettings {
        authenticates: false,
        ..settings()
    };
    let answers = ask(nobody, STRANGER, "Bearer istio-system").await;
    check(&answers, 401, 401, "");
}

#[tokio::test]
async fn replicas_see_what_they_ask_each_other() {
    let answers = ask(settings(), "192.0.2.7:4711", "").await;
    check(&answers, 401, 200, EVERYTHING);
    // A token says who somebody is, wherever it comes from.
    let answers = ask(settings(), "192.0.2.7:4711", "Bearer bad").await;
    check(&answers, 401, 401, "");
}
