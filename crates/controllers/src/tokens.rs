//! Whose token it is that a proxy shows: the API server says (`TokenReview`).

use std::{
    fmt,
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::authentication::v1::{TokenReview as Review, TokenReviewSpec};
use kube::{Api, Client, api::PostParams};
use security::{BoundPod, Holder, MAX_TOKEN_BYTES, TokenError, TokenReview, Unreviewed, identity};
use tokio::{sync::Semaphore, time::timeout};

/// How long one review may take, its turn included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Reviews at once: after a restart every proxy comes with a token, and the API server serves others too.
const REVIEWS: usize = 32;

/// What the API server says of the pod that a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Asks the API server about tokens.
pub struct ClusterTokens {
    api: Api<Review>,
    audiences: Vec<String>,
    trust_domain: Box<dyn Fn() -> String + Send + Sync>,
    turns: Semaphore,
}

impl fmt::Debug for ClusterTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterTokens")
            .field("audiences", &self.audiences)
            .finish_non_exhaustive()
    }
}

impl ClusterTokens {
    /// Accepts tokens for one of these audiences; who is behind one is of the trust domain of that moment.
    pub fn new(
        client: Client,
        audiences: Vec<String>,
        trust_domain: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            api: Api::all(client),
            audiences,
            trust_domain: Box::new(trust_domain),
            turns: Semaphore::new(REVIEWS),
        }
    }

    async fn ask(&self, token: &str) -> Result<Holder, Unreviewed> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed.into());
        }
        let unavailable = |error: &dyn fmt::Display| Unreviewed::Unavailable(error.to_string());
        let _turn = self
            .turns
            .acquire()
            .await
            .map_err(|error| unavailable(&error))?;
        let review = Review {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: Some(self.audiences.clone()),
            },
            ..Review::default()
        };
        let answer = self.api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| unavailable(&error))?;
        read(&answer, &self.audiences, &(self.trust_domain)()).map_err(Unreviewed::from)
    }
}

impl TokenReview for ClusterTokens {
    fn review<'a>(
        &'a self,
        token: &'a str,
        _now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>> {
        Box::pin(async move {
            let asked = timeout(PATIENCE, self.ask(token)).await;
            asked.unwrap_or_else(|_| Err(Unreviewed::Unavailable("no answer in time".to_owned())))
        })
    }
}

/// Who it is, if an answer says so.
fn read(review: &Review, audiences: &[String], trust_domain: &str) -> Result<Holder, TokenError> {
    let Some(status) = &review.status else {
        return Err(TokenError::Rejected(
            "an answer without a status".to_owned(),
        ));
    };
    if status.authenticated != Some(true) {
        let reason = status.error.clone().filter(|reason| !reason.is_empty());
        return Err(TokenError::Rejected(
            reason.unwrap_or_else(|| "not authenticated".to_owned()),
        ));
    }
    // An authenticator that knows of no audiences says none, and has accepted a token for anybody.
    let accepted = status.audiences.iter().flatten();
    if !accepted
        .into_iter()
        .any(|accepted| audiences.contains(accepted))
    {
        return Err(TokenError::Audience);
    }
    let user = status.user.as_ref();
    let name = user.and_then(|user| user.username.as_deref());
    let identity = identity(trust_domain, name.unwrap_or_default()).ok_or(TokenError::Subject)?;
    let extra = user.and_then(|user| user.extra.as_ref());
    let said = |key: &str| {
        let values = extra?.get(key)?;
        let value = values.first().filter(|value| !value.is_empty());
        value.cloned()
    };
    let pod = said(POD_NAME)
        .zip(said(POD_UID))
        .map(|(name, uid)| BoundPod { name, uid });
    Ok(Holder { identity, pod })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};

    use super::*;

    #[track_caller]
    fn check(user: &str, audiences: &[&str], expected: Result<&str, TokenError>) {
        let status = TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(audiences.iter().map(|a| (*a).to_owned()).collect()),
            user: Some(UserInfo {
                username: Some(user.to_owned()),
                ..UserInfo::default()
            }),
            ..TokenReviewStatus::default()
        };
        let review = Review {
            status: Some(status),
            ..Review::default()
        };
        let found = read(&review, &["istio-ca".to_owned()], "td");
        let found = found.map(|holder| holder.identity.to_string());
        assert_eq!(found, expected.map(str::to_owned));
    }

    #[test]
    fn a_service_account_is_an_identity_if_its_token_is_for_us() {
        let account = "system:serviceaccount:shop:web";
        check(
            account,
            &["other", "istio-ca"],
            Ok("spiffe://td/ns/shop/sa/web"),
        );
        check(account, &["other"], Err(TokenError::Audience));
        check(account, &[], Err(TokenError::Audience));
        check("system:node:n1", &["istio-ca"], Err(TokenError::Subject));
        check(
            "system:serviceaccount:a:b/../c",
            &["istio-ca"],
            Err(TokenError::Subject),
        );
    }

    #[track_caller]
    fn check_pod(extra: &[(&str, &str)], expected: Option<(&str, &str)>) {
        let extra = extra
            .iter()
            .map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()]))
            .collect();
        let status = TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec!["istio-ca".to_owned()]),
            user: Some(UserInfo {
                username: Some("system:serviceaccount:shop:web".to_owned()),
                extra: Some(extra),
                ..UserInfo::default()
            }),
            ..TokenReviewStatus::default()
        };
        let review = Review {
            status: Some(status),
            ..Review::default()
        };
        let holder = read(&review, &["istio-ca".to_owned()], "td").unwrap();
        let found = holder.pod.as_ref().map(|pod| (&*pod.name, &*pod.uid));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_token_may_be_bound_to_a_pod() {
        check_pod(&[(POD_NAME, "web-0"), (POD_UID, "u")], Some(("web-0", "u")));
        check_pod(&[(POD_NAME, "web-0")], None);
        check_pod(&[(POD_NAME, ""), (POD_UID, "u")], None);
        check_pod(&[], None);
    }

    #[test]
    fn what_is_not_authenticated_is_nobody() {
        let mut review = Review::default();
        let refused = |review: &Review| read(review, &[], "td").unwrap_err().to_string();
        assert!(refused(&review).contains("without a status"));
        review.status = Some(TokenReviewStatus {
            error: Some("expired".to_owned()),
            ..TokenReviewStatus::default()
        });
        assert!(refused(&review).contains("expired"));
    }
}
