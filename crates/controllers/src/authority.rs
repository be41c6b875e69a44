//! The authority of the mesh, kept in a Secret of the control plane's namespace.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use security::{AuthorityError, AuthorityParts};
use zeroize::{Zeroize as _, Zeroizing};

/// The type of a Secret that holds a self-signed authority.
const TYPE: &str = "istio.io/ca-root";

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptError {
    /// The API server does not give it, or take it.
    #[error("Secret {namespace}/{name}")]
    Api {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The Secret is there, and holds no authority. It is not replaced: somebody may want it.
    #[error("Secret {namespace}/{name} holds no authority")]
    NoAuthority {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// No authority can be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl KeptError {
    /// Returns whether the API server does not let us read or keep it, or there is no such namespace.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Api { source, .. }
            if matches!(&**source, kube::Error::Api(status) if matches!(status.code, 403 | 404)))
    }
}

/// Where an authority is kept.
#[derive(Clone)]
pub struct Kept {
    client: Client,
    namespace: String,
    name: String,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.place()).finish()
    }
}

impl Kept {
    /// A Secret that need not be there yet.
    pub fn new(client: Client, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The API of Secrets, where it is.
    pub fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        format!("Secret {}/{}", self.namespace, self.name)
    }

    /// Returns the authority; a new root, which is kept, when there is none. Of several replicas that
    /// begin at once one makes it, and all have that one.
    ///
    /// # Errors
    /// When the API server does not let us, or the Secret holds something else.
    pub async fn open(
        &self,
        trust_domain: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<AuthorityParts, KeptError> {
        let failed = |source| KeptError::Api {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            source: Box::new(source),
        };
        let api = self.api();
        if api.get_opt(&self.name).await.map_err(failed)?.is_none() {
            let made = AuthorityParts::self_signed(trust_domain, lifetime, now)?;
            let secret = self.secret(&made);
            let created = api.create(&PostParams::default(), &secret).await;
            clear(secret);
            match created {
                Ok(created) => {
                    clear(created);
                    tracing::info!(place = self.place(), "a new root is kept");
                    return Ok(made);
                }
                // Another replica was faster.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let found = api.get(&self.name).await.map_err(failed)?;
        parts(found).ok_or_else(|| KeptError::NoAuthority {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })
    }

    fn secret(&self, parts: &AuthorityParts) -> Secret {
        let data = parts.named().map(|(name, text)| {
            let bytes = ByteString(text.as_bytes().to_vec());
            (name.to_owned(), bytes)
        });
        Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(data.collect()),
            ..Secret::default()
        }
    }
}

/// The authority that a Secret holds, if it does; the Secret's own copy is overwritten.
pub fn parts(secret: Secret) -> Option<AuthorityParts> {
    let found = AuthorityParts::find(|name| {
        let bytes = secret.data.as_ref()?.get(name)?;
        let text = std::str::from_utf8(&bytes.0).ok()?;
        Some(Zeroizing::new(text.to_owned()))
    });
    clear(secret);
    found
}

fn clear(secret: Secret) {
    for mut bytes in secret.data.into_iter().flat_map(BTreeMap::into_values) {
        bytes.0.zeroize();
    }
}
