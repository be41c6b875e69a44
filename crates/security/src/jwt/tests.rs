use std::time::Duration;

use proptest::prelude::*;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

use super::*;

const NOW: u64 = 1_800_000_000;

/// An issuer with a key.
struct Party {
    pair: EcdsaKeyPair,
}

impl Party {
    fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
        Self { pair }
    }

    fn keys(&self, extra: &Value) -> KeySet {
        let point = self.pair.public_key().as_ref();
        let mut key = json!({
            "kty": "EC", "crv": "P-256", "kid": "k",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
        });
        let object = key.as_object_mut().unwrap();
        object.extend(extra.as_object().unwrap().clone());
        KeySet::parse(&json!({"keys": [key]}).to_string()).unwrap_or_default()
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let random = SystemRandom::new();
        let signature = self.pair.sign(&random, message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn issuers(party: &Party) -> TokenIssuers {
    let issuer = Issuer {
        issuer: "https://issuer".to_owned(),
        audiences: vec!["istio-ca".to_owned()],
        keys: party.keys(&json!({})),
    };
    TokenIssuers::new("cluster.local", vec![issuer])
}

fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer", "sub": "system:serviceaccount:a:b", "aud": ["other", "istio-ca"],
        "exp": NOW + 60, "nbf": NOW - 60,
    });
    let object = claims.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value.is_null() {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    claims
}

fn verify(issuers: &TokenIssuers, token: &str) -> Result<String, TokenError> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let holder = issuers.verify(token, now)?;
    Ok(holder.identity.to_string())
}

#[track_caller]
fn check(changes: &Value, expected: Result<&str, TokenError>) {
    let party = Party::new();
    let token = party.token(&json!({"alg": "ES256", "kid": "k"}), &claims(changes));
    let found = verify(&issuers(&party), &token);
    assert_eq!(found, expected.map(str::to_owned));
}

#[test]
fn claims_decide() {
    let identity = "spiffe://cluster.local/ns/a/sa/b";
    check(&json!({}), Ok(identity));
    check(&json!({"aud": "istio-ca"}), Ok(identity));
    check(&json!({"aud": "other"}), Err(TokenError::Audience));
    check(&json!({"aud": null}), Err(TokenError::Audience));
    check(&json!({"exp": NOW}), Err(TokenError::Expired));
    check(&json!({"exp": null}), Err(TokenError::Expired));
    check(&json!({"nbf": NOW + 30}), Ok(identity));
    check(&json!({"nbf": NOW + 90}), Err(TokenError::NotYet));
    check(&json!({"iss": "https://other"}), Err(TokenError::Issuer));
    check(&json!({"sub": "somebody"}), Err(TokenError::Subject));
    let slash = json!({"sub": "system:serviceaccount:a:b/../c"});
    check(&slash, Err(TokenError::Subject));
    let colon = json!({"sub": "system:serviceaccount:a:b:c"});
    check(&colon, Err(TokenError::Subject));
    check(&json!({"exp": "soon"}), Err(TokenError::Malformed));
}

#[track_caller]
fn check_pod(claim: &Value, expected: Option<(&str, &str)>) {
    let party = Party::new();
    let claims = claims(&json!({"kubernetes.io": claim}));
    let token = party.token(&json!({"alg": "ES256", "kid": "k"}), &claims);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let pod = issuers(&party).verify(&token, now).unwrap().pod;
    let found = pod.as_ref().map(|pod| (&*pod.name, &*pod.uid));
    assert_eq!(found, expected);
}

#[test]
fn tokens_tell_the_pod_that_they_are_bound_to() {
    let pod = json!({"name": "p", "uid": "u"});
    check_pod(
        &json!({"namespace": "a", "pod": pod, "node": {"name": "n"}}),
        Some(("p", "u")),
    );
    check_pod(&json!({"namespace": "other", "pod": pod}), None);
    check_pod(&json!({"pod": pod}), None);
    check_pod(&json!({"namespace": "a", "pod": {"name": "p"}}), None);
    check_pod(
        &json!({"namespace": "a", "pod": {"name": "", "uid": "u"}}),
        None,
    );
    check_pod(&json!({"namespace": "a"}), None);
    check_pod(&json!("a"), None);
    check_pod(&json!(null), None);
}

#[test]
fn only_keys_of_the_issuer_sign() {
    let (party, other) = (Party::new(), Party::new());
    let header = json!({"alg": "ES256", "kid": "k"});
    let token = other.token(&header, &claims(&json!({})));
    let issuers = issuers(&party);
    assert_eq!(verify(&issuers, &token), Err(TokenError::Signature));
    let named = party.token(&json!({"alg": "ES256", "kid": "x"}), &claims(&json!({})));
    assert_eq!(verify(&issuers, &named), Err(TokenError::Signature));
    let unnamed = party.token(&json!({"alg": "ES256"}), &claims(&json!({})));
    assert!(verify(&issuers, &unnamed).is_ok());
}

#[test]
fn algorithms_without_a_public_key_do_not_exist() {
    let party = Party::new();
    let issuers = issuers(&party);
    for name in ["none", "None", "HS256", ""] {
        let token = party.token(&json!({"alg": name}), &claims(&json!({})));
        assert_eq!(verify(&issuers, &token), Err(TokenError::Algorithm));
        let (message, _) = token.rsplit_once('.').unwrap();
        assert_eq!(
            verify(&issuers, &format!("{message}.")),
            Err(TokenError::Algorithm)
        );
    }
    // An algorithm of another kind of key.
    let token = party.token(&json!({"alg": "RS256"}), &claims(&json!({})));
    assert_eq!(verify(&issuers, &token), Err(TokenError::Signature));
    let critical = json!({"alg": "ES256", "crit": ["b64"], "b64": false});
    let token = party.token(&critical, &claims(&json!({})));
    assert_eq!(verify(&issuers, &token), Err(TokenError::Algorithm));
}

#[test]
fn keys_for_other_uses_do_not_count() {
    let party = Party::new();
    assert_eq!(party.keys(&json!({"use": "enc"})).0.len(), 0);
    assert_eq!(party.keys(&json!({"use": "sig"})).0.len(), 1);
    assert_eq!(party.keys(&json!({"crv": "secp256k1"})).0.len(), 0);
    assert!(KeySet::parse("{}").is_none());
    let secret = json!({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).to_string();
    assert!(KeySet::parse(&secret).is_none());
}

#[test]
fn long_tokens_are_not_looked_at() {
    let issuers = issuers(&Party::new());
    let long = "a".repeat(MAX_TOKEN_BYTES + 1);
    assert_eq!(verify(&issuers, &long), Err(TokenError::Malformed));
    for token in ["", ".", "..", "...", "a.b.c"] {
        assert_eq!(verify(&issuers, token), Err(TokenError::Malformed));
    }
}

proptest! {
    #[test]
    fn a_changed_token_is_refused(at in 0_usize..400, with in "[A-Za-z0-9_.-]") {
        let party = Party::new();
        let token = party.token(&json!({"alg": "ES256", "kid": "k"}), &claims(&json!({})));
        let at = at % token.len();
        let mut changed = token.clone();
        changed.replace_range(at..=at, &with);
        // The last letter of a part holds bits that mean nothing; the decoder refuses them.
        prop_assume!(changed != token);
        prop_assert!(verify(&issuers(&party), &changed).is_err());
    }
}
