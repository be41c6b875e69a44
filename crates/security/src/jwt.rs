//! Tokens of service accounts: JSON web tokens of issuers whose keys are known.

use std::{fmt, future::Future, pin::Pin, time::SystemTime};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use model::SpiffeId;
use ring::signature::{
    self, EcdsaVerificationAlgorithm, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use crate::TokenError;

/// The longest token that is looked at, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Seconds by which a token may be valid later than now: clocks differ.
const SKEW: f64 = 60.0;
/// Subjects of service accounts begin so.
const SUBJECT: &str = "system:serviceaccount:";

/// Who is behind a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The identity of its service account.
    pub identity: SpiffeId,
    /// The pod that the token was made for, if it was made for one.
    pub pod: Option<BoundPod>,
}

/// The pod that a token is bound to; its namespace is that of the identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundPod {
    /// Its name.
    pub name: String,
    /// Its unique id: another pod may have had the name.
    pub uid: String,
}

/// What verifies the tokens that callers show: keys that are known here, or somebody who is asked.
pub trait TokenReview: fmt::Debug + Send + Sync {
    /// Returns whose token it is.
    fn review<'a>(
        &'a self,
        token: &'a str,
        now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>>;
}

/// Why nobody is behind a token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreviewed {
    /// The token is refused.
    #[error(transparent)]
    Refused(#[from] TokenError),
    /// Whoever has to be asked does not answer.
    #[error("token review is not available: {0}")]
    Unavailable(String),
}

/// Returns the identity of a subject, if that is a service account:
/// `system:serviceaccount:<namespace>:<name>`.
pub fn identity(trust_domain: &str, subject: &str) -> Option<SpiffeId> {
    let (namespace, account) = subject.strip_prefix(SUBJECT)?.split_once(':')?;
    SpiffeId::new(trust_domain, namespace, account).ok()
}

/// Issuers whose tokens are accepted, by keys that are known beforehand.
#[derive(Clone, Debug, Default)]
pub struct TokenIssuers {
    trust_domain: String,
    issuers: Vec<Issuer>,
}

/// Who issues tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// The claim `iss`.
    pub issuer: String,
    /// One of these must be in the claim `aud`.
    pub audiences: Vec<String>,
    /// Its keys.
    pub keys: KeySet,
}

/// Public keys that verify tokens.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone, Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Ec { curve: Curve, point: Vec<u8> },
    Ed25519(Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Curve {
    P256,
    P384,
}

#[derive(Deserialize)]
struct RawKeySet {
    keys: Vec<RawKey>,
}

#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a JSON web key set (RFC 7517). Keys that are not for signatures, or of a kind that is
    /// not accepted, are left out; `None` when it is no key set or no key is left.
    pub fn parse(json: &str) -> Option<Self> {
        let raw: RawKeySet = serde_json::from_str(json).ok()?;
        let keys: Vec<Key> = raw.keys.into_iter().filter_map(Key::read).collect();
        (!keys.is_empty()).then_some(Self(keys))
    }
}

impl Key {
    fn read(raw: RawKey) -> Option<Self> {
        if raw.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let material = match (&*raw.kty, raw.crv.as_deref()) {
            ("RSA", _) => Material::Rsa {
                n: bytes(&raw.n)?,
                e: bytes(&raw.e)?,
            },
            ("EC", Some(name)) => {
                let curve = match name {
                    "P-256" => Curve::P256,
                    "P-384" => Curve::P384,
                    _ => return None,
                };
                let point = [&[4][..], &bytes(&raw.x)?, &bytes(&raw.y)?].concat();
                Material::Ec { curve, point }
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&raw.x)?),
            _ => return None,
        };
        Some(Self {
            id: raw.kid,
            algorithm: raw.alg,
            material,
        })
    }

    /// Returns whether this key has signed a message by an algorithm.
    fn verifies(&self, algorithm: Algorithm, name: &str, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.as_deref().is_some_and(|own| own != name) {
            return false;
        }
        match (&self.material, algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rsa(parameters)) => RsaPublicKeyComponents { n, e }
                .verify(parameters, message, signature)
                .is_ok(),
            (Material::Ec { curve, point }, Algorithm::Ec(wanted, algorithm)) => {
                *curve == wanted
                    && UnparsedPublicKey::new(algorithm, point)
                        .verify(message, signature)
                        .is_ok()
            }
            (Material::Ed25519(key), Algorithm::Ed25519) => {
                UnparsedPublicKey::new(&signature::ED25519, key)
                    .verify(message, signature)
                    .is_ok()
            }
            _ => false,
        }
    }
}

#[derive(Clone, Copy)]
enum Algorithm {
    Rsa(&'static RsaParameters),
    Ec(Curve, &'static EcdsaVerificationAlgorithm),
    Ed25519,
}

impl Algorithm {
    /// The algorithm of a name; those without a public key (`none`, `HS256`) do not exist here.
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            "PS384" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            "PS512" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            "ES256" => Self::Ec(Curve::P256, &signature::ECDSA_P256_SHA256_FIXED),
            "ES384" => Self::Ec(Curve::P384, &signature::ECDSA_P384_SHA384_FIXED),
            "EdDSA" => Self::Ed25519,
            _ => return None,
        })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; none is.
    crit: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    #[serde(default)]
    sub: String,
    #[serde(default)]
    aud: Audience,
    exp: Option<f64>,
    nbf: Option<f64>,
    /// What Kubernetes says of the object that the token is bound to.
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<serde_json::Value>,
}

impl Claims {
    /// The pod that the token is bound to, if its claims are whole.
    fn pod(&self, namespace: &str) -> Option<BoundPod> {
        let claims = self.kubernetes.as_ref()?;
        let text = |value: &serde_json::Value| {
            let text = value.as_str().filter(|text| !text.is_empty());
            text.map(str::to_owned)
        };
        if claims["namespace"].as_str() != Some(namespace) {
            return None;
        }
        Some(BoundPod {
            name: text(&claims["pod"]["name"])?,
            uid: text(&claims["pod"]["uid"])?,
        })
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Audience {
    fn holds(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl TokenIssuers {
    /// Accepts the tokens of some issuers, for identities of a trust domain.
    pub fn new(trust_domain: &str, issuers: Vec<Issuer>) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            issuers,
        }
    }

    /// Verifies a token and returns who is behind it.
    ///
    /// # Errors
    /// [`TokenError`] says which check failed.
    pub fn verify(&self, token: &str, now: SystemTime) -> Result<Holder, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(TokenError::Malformed)?;
        let decode = |text: &str| {
            URL_SAFE_NO_PAD
                .decode(text)
                .map_err(|_| TokenError::Malformed)
        };
        let signature = decode(signature)?;
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        let claims: Claims =
            serde_json::from_slice(&decode(claims)?).map_err(|_| TokenError::Malformed)?;
        let algorithm = Algorithm::of(&header.alg).ok_or(TokenError::Algorithm)?;
        if header.crit.is_some() {
            return Err(TokenError::Algorithm);
        }
        // Several entries for one issuer are one issuer with all their keys.
        let issuers = || self.issuers.iter().filter(|i| i.issuer == claims.iss);
        if issuers().next().is_none() {
            return Err(TokenError::Issuer);
        }
        let signed = |issuer: &&Issuer| {
            let fits =
                |key: &&Key| header.kid.is_none() || key.id.is_none() || key.id == header.kid;
            issuer
                .keys
                .0
                .iter()
                .filter(fits)
                .any(|key| key.verifies(algorithm, &header.alg, message.as_bytes(), &signature))
        };
        let mut issuers = issuers().filter(signed).peekable();
        // Nothing of the token counts before this.
        if issuers.peek().is_none() {
            return Err(TokenError::Signature);
        }
        if !issuers.any(|i| i.audiences.iter().any(|wanted| claims.aud.holds(wanted))) {
            return Err(TokenError::Audience);
        }
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = since.as_secs_f64();
        // What never expires cannot be taken back.
        if claims.exp.is_none_or(|expiry| expiry <= now) {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|start| start > now + SKEW) {
            return Err(TokenError::NotYet);
        }
        let identity = identity(&self.trust_domain, &claims.sub).ok_or(TokenError::Subject)?;
        let pod = claims.pod(identity.namespace());
        Ok(Holder { identity, pod })
    }
}

impl TokenReview for TokenIssuers {
    fn review<'a>(
        &'a self,
        token: &'a str,
        now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>> {
        Box::pin(async move { Ok(self.verify(token, now)?) })
    }
}

#[cfg(test)]
mod tests;
