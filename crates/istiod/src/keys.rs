//! Fetching the keys of token issuers over HTTP (security-policy §6).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use intake::keys::KeySource;
use ipnet::IpNet;
use reqwest::{
    Certificate, Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::{Attempt, Policy},
};
use serde_json::Value;

use crate::settings::KeySettings;

/// Roots that are trusted beside those of the system, where Istio's charts mount them.
const EXTRA_ROOTS: &str = "/cacerts/extra.pem";
/// The largest answer in bytes; real key sets have a few thousand.
const LARGEST: usize = 1 << 20;
const REDIRECTS: usize = 10;

/// Where nobody's keys are, but what a machine knows of itself: metadata services of clouds.
const METADATA: [&str; 4] = [
    "169.254.0.0/16",
    "fe80::/10",
    "100.100.100.200/32",
    "fd00:ec2::/32",
];

/// Gets key sets; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Fetcher {
    client: Client,
    guard: Arc<Guard>,
}

impl Fetcher {
    /// # Errors
    /// When the additional roots cannot be read, or the system has no roots.
    pub(crate) fn new(settings: &KeySettings) -> anyhow::Result<Self> {
        let guard = Arc::new(Guard::new(&settings.blocked));
        let at_redirects = guard.clone();
        let policy = Policy::custom(move |attempt: Attempt<'_>| {
            if attempt.previous().len() > REDIRECTS {
                return attempt.error("too many redirects");
            }
            match at_redirects.check(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(error) => attempt.error(error.to_string()),
            }
        });
        let mut builder = Client::builder()
            .pool_max_idle_per_host(0)
            .redirect(policy)
            .dns_resolver(Arc::new(Checked(guard.clone())));
        match std::fs::read(EXTRA_ROOTS) {
            Ok(pem) => {
                let roots = Certificate::from_pem_bundle(&pem)
                    .with_context(|| format!("read {EXTRA_ROOTS}"))?;
                builder = builder.tls_certs_merge(roots);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("read {EXTRA_ROOTS}")),
        }
        if settings.insecure {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        let client = builder.build().context("make an HTTP client")?;
        Ok(Self { client, guard })
    }

    /// Gets the keys of a source.
    ///
    /// # Errors
    /// Says why there are none, in words for the log.
    pub(crate) async fn fetch(&self, source: &KeySource) -> anyhow::Result<Arc<str>> {
        let uri = if source.uri.is_empty() {
            self.discover(&source.issuer).await?
        } else {
            source.uri.to_string()
        };
        let text = self.get(&uri).await?;
        let keys: Value = serde_json::from_str(&text).with_context(|| format!("read {uri}"))?;
        ensure!(keys["keys"].is_array(), "{uri} is no set of keys");
        Ok(text.into())
    }

    /// Asks the `OpenID` configuration of an issuer where its keys are.
    async fn discover(&self, issuer: &str) -> anyhow::Result<String> {
        let base = issuer.strip_suffix('/').unwrap_or(issuer);
        let uri = format!("{base}/.well-known/openid-configuration");
        let text = self.get(&uri).await?;
        let found: Value = serde_json::from_str(&text).with_context(|| format!("read {uri}"))?;
        let keys = found["jwks_uri"].as_str().filter(|uri| !uri.is_empty());
        keys.map(str::to_owned)
            .ok_or_else(|| anyhow!("{uri} names no jwks_uri"))
    }

    async fn get(&self, uri: &str) -> anyhow::Result<String> {
        let url: Url = uri.parse().with_context(|| format!("read {uri:?}"))?;
        self.guard.check(&url)?;
        let response = self.client.get(url).send().await?;
        let mut response = response.error_for_status()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            ensure!(
                body.len() + chunk.len() <= LARGEST,
                "{uri} answers more than {LARGEST} bytes"
            );
            body.extend_from_slice(&chunk);
        }
        String::from_utf8(body).with_context(|| format!("{uri} answers no text"))
    }
}

/// Which addresses may be asked: users name them, and must not reach through the control plane what
/// they could not reach themselves.
#[derive(Debug)]
struct Guard {
    blocked: Vec<IpNet>,
}

/// An address that may not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} may not be asked for keys")]
struct Blocked(IpAddr);

impl Guard {
    fn new(blocked: &[IpNet]) -> Self {
        let metadata = METADATA.iter().filter_map(|net| net.parse().ok());
        Self {
            blocked: metadata.chain(blocked.iter().copied()).collect(),
        }
    }

    fn allows(&self, address: IpAddr) -> Result<IpAddr, Blocked> {
        let address = address.to_canonical();
        if self.blocked.iter().any(|net| net.contains(&address)) {
            return Err(Blocked(address));
        }
        Ok(address)
    }

    /// Checks a URL whose host is an address; names are checked when they are resolved.
    fn check(&self, url: &Url) -> anyhow::Result<()> {
        if !matches!(url.scheme(), "http" | "https") {
            bail!("{url} is neither http nor https");
        }
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = literal.parse() {
            self.allows(address)?;
        }
        Ok(())
    }
}

/// Resolves names, to addresses that may be asked.
struct Checked(Arc<Guard>);

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checked").field(&self.0).finish()
    }
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Result<Vec<SocketAddr>, Blocked> = found
                .map(|found| Ok(SocketAddr::new(guard.allows(found.ip())?, 0)))
                .collect();
            Ok(Box::new(allowed?.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::{Router, http::StatusCode, response::Redirect, routing::get};
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;

    const KEYS: &str = r#"{"keys":[]}"#;

    /// Starts an issuer on loopback; returns its address.
    async fn issuer(tasks: &mut JoinSet<io::Result<()>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let configuration = format!(r#"{{"jwks_uri":"{address}/jwks"}}"#);
        let router = Router::new()
            .route("/jwks", get(async || KEYS))
            .route(
                "/realm/.well-known/openid-configuration",
                get(async move || configuration),
            )
            .route("/moved", get(async || Redirect::temporary("/jwks")))
            .route(
                "/stolen",
                get(async || Redirect::temporary("http://169.254.169.254/latest")),
            )
            .route("/loop", get(async || Redirect::temporary("/loop")))
            .route("/broken", get(async || StatusCode::BAD_GATEWAY))
            .route("/page", get(async || "<html>"))
            .route("/other", get(async || r#"{"keys":1}"#))
            .route("/large", get(async || "x".repeat(LARGEST + 1)));
        tasks.spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn fetch(issuer: &str, uri: &str) -> Result<Arc<str>, String> {
        crate::install_crypto();
        let settings = KeySettings {
            blocked: vec!["192.0.2.0/24".parse().unwrap()],
            ..KeySettings::default()
        };
        let source = KeySource {
            issuer: issuer.into(),
            uri: uri.into(),
        };
        let fetched = Fetcher::new(&settings).unwrap().fetch(&source).await;
        fetched.map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn keys_come_from_their_address_or_from_where_the_issuer_says() {
        let mut tasks = JoinSet::new();
        let issuer = issuer(&mut tasks).await;
        for (name, uri) in [
            ("any", format!("{issuer}/jwks")),
            ("any", format!("{issuer}/moved")),
            (&format!("{issuer}/realm"), String::new()),
            (&format!("{issuer}/realm/"), String::new()),
        ] {
            assert_eq!(fetch(name, &uri).await.as_deref(), Ok(KEYS), "{name} {uri}");
        }
    }

    #[tokio::test]
    async fn what_is_no_key_set_is_told() {
        let mut tasks = JoinSet::new();
        let issuer = issuer(&mut tasks).await;
        for (path, expected) in [
            ("/broken", "502"),
            ("/page", "expected value"),
            ("/other", "no set of keys"),
            ("/large", "more than 1048576 bytes"),
            ("/loop", "too many redirects"),
            ("/stolen", "169.254.169.254 may not be asked"),
        ] {
            let error = fetch("any", &format!("{issuer}{path}")).await.unwrap_err();
            assert!(error.contains(expected), "{path}: {error}");
        }
        let error = fetch(&issuer, "").await.unwrap_err();
        assert!(error.contains("404"), "{error}");
    }

    #[tokio::test]
    async fn addresses_of_machines_are_not_asked() {
        for uri in [
            "http://169.254.169.254/latest",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://100.100.100.200/",
            "http://[fd00:ec2::254]/",
            "https://192.0.2.7/",
            "http://2852039166/",
        ] {
            let error = fetch("any", uri).await.unwrap_err();
            assert!(
                error.contains("may not be asked for keys"),
                "{uri}: {error}"
            );
        }
        let error = fetch("any", "file:///etc/passwd").await.unwrap_err();
        assert!(error.contains("neither http nor https"), "{error}");
    }
}
