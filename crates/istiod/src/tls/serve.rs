//! The services of the secure port: xDS and certificates.

use std::{sync::Arc, time::SystemTime};

use anyhow::Context as _;
use generators::Mesh;
use model::MeshState;
use parking_lot::Mutex;
use security::{AuthorityStore, Origin};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use xds::{Server, Transport};

use super::{
    SecureArgs, SecurePort, Trust,
    accept::accept,
    guard::{Demand, Guarded},
};
use crate::{
    ca::{CertificateService, Signing},
    home::Home,
    http,
    metrics::CertificateMetrics,
    settings::{Settings, security::SecuritySettings},
    tokens::Tokens,
};

/// A secure port that listens and does not serve yet.
#[derive(Debug)]
pub(crate) struct Listening {
    port: Arc<SecurePort>,
    listener: TcpListener,
    /// The cluster that keeps the authority, if one does.
    kept: Option<Home>,
}

/// What the services of the port need.
#[derive(Clone, Debug)]
pub(crate) struct With<'a> {
    /// The xDS server.
    pub(crate) server: &'a Server<Mesh>,
    /// The state of the mesh.
    pub(crate) latest: &'a Arc<Mutex<MeshState>>,
    /// What proves who a caller without a certificate is.
    pub(crate) tokens: &'a Tokens,
    /// Where it is counted what becomes of requests for certificates.
    pub(crate) metrics: &'a CertificateMetrics,
    /// Limits and times of connections.
    pub(crate) transport: Transport,
}

/// The wall clock of certificates and tokens.
#[expect(
    clippy::disallowed_methods,
    reason = "the one wall clock of identities"
)]
pub(crate) fn clock() -> SystemTime {
    SystemTime::now()
}

fn trust(state: &MeshState) -> Trust {
    Trust {
        domain: state.mesh.trust_domain.clone(),
        aliases: state.mesh.trust_domain_aliases.clone(),
    }
}

fn demand(settings: &SecuritySettings) -> Demand {
    match (settings.authenticates, settings.checks_identity) {
        (false, _) => Demand::Nothing,
        (true, false) => Demand::AnyIdentity,
        (true, true) => Demand::Identity,
    }
}

/// Opens the secure port, unless it is switched off.
///
/// # Errors
/// When its authority or certificate cannot be used, or its address is taken.
pub(crate) async fn open(
    args: &SecureArgs,
    settings: &Settings,
    latest: &Arc<Mutex<MeshState>>,
    home: Option<&Home>,
) -> anyhow::Result<Option<Listening>> {
    let Some(address) = args.secure.0 else {
        tracing::info!("there is no secure port");
        return Ok(None);
    };
    let trust = trust(&latest.lock());
    let given = match home {
        Some(home) => given(args, settings, &trust.domain, home).await?,
        None => None,
    };
    let kept = home.filter(|_| given.is_some()).cloned();
    let port = SecurePort::open(args, settings, trust, given, clock());
    let port = port.context("open the secure port")?;
    let listener = http::bind(address)?;
    port.report();
    tracing::info!(address = %listener.local_addr()?, "listening for xDS over TLS");
    Ok(Some(Listening {
        port: Arc::new(port),
        listener,
        kept,
    }))
}

/// The authority that a cluster keeps. One in files goes before it.
async fn given(
    args: &SecureArgs,
    settings: &Settings,
    trust_domain: &str,
    home: &Home,
) -> anyhow::Result<Option<AuthorityStore>> {
    let part = &settings.security;
    let in_files = args.ca_dir.is_some() || AuthorityStore::is_in(&part.authority_folder)?;
    if in_files {
        return Ok(None);
    }
    home.authority(trust_domain, part.root_lifetime, clock())
        .await
}

/// All whose tokens prove who a caller is.
///
/// # Errors
/// When the file of issuers cannot be used.
pub(crate) fn tokens(
    args: &SecureArgs,
    settings: &Settings,
    latest: &Arc<Mutex<MeshState>>,
    home: Option<&Home>,
) -> anyhow::Result<Tokens> {
    let part = &settings.security;
    let state = latest.clone();
    let trust_domain = move || state.lock().mesh.trust_domain.clone();
    let now = trust_domain();
    let tokens = Tokens::open(
        args.jwt_issuers.as_deref(),
        part.issuer_rule.as_ref(),
        &part.audiences,
        &now,
        home.map(|home| home.tokens(settings, trust_domain)),
    )?;
    tokens.report(&part.audiences);
    Ok(tokens)
}

impl Listening {
    /// The authority.
    pub(crate) fn store(&self) -> &Arc<AuthorityStore> {
        self.port.store()
    }

    /// The authority, if all replicas have it: one of the cluster, or of files.
    pub(crate) fn shared_store(&self) -> Option<Arc<AuthorityStore>> {
        let store = self.port.store();
        (*store.origin() != Origin::Memory).then(|| store.clone())
    }

    /// Starts to serve, and to follow changes.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn serve(
        self,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        with: With<'_>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let With {
            server,
            latest,
            tokens,
            metrics,
            transport,
        } = with;
        let Self {
            port,
            listener,
            kept,
        } = self;
        if let Some(home) = kept {
            let (store, stop) = (port.store().clone(), stop.clone());
            tasks.spawn(async move {
                home.follow_authority(store, clock, stop).await;
                Ok(())
            });
        }
        let settings = port.settings();
        let state = latest.clone();
        let certificates = CertificateService::new(Signing {
            store: port.store().clone(),
            lifetimes: settings.lifetimes,
            state: Arc::new(move || state.lock().clone()),
            agents: settings.agents.clone(),
            metrics: metrics.clone(),
            clock,
        })
        .context("start the signing threads")?;
        let ads = server.service().receive_bytes(transport.receive_bytes);
        let ads = Guarded::new(
            ads,
            demand(settings),
            "authentication failure",
            tokens.clone(),
            clock,
        );
        let certificates = Guarded::new(
            certificates,
            Demand::Identity,
            "request authenticate failure",
            tokens.clone(),
            clock,
        )
        .counting(metrics.clone());
        let routes = Routes::new(ads).add_service(certificates).prepare();
        let (incoming, securing) = accept(listener, port.clone());
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move {
            // Securing ends when nobody takes connections any more.
            tokio::join!(xds::serve(incoming, routes, transport, stopped), securing);
            Ok(())
        });
        let (state, stop) = (latest.clone(), stop.clone());
        tasks.spawn(async move {
            port.watch(move || trust(&state.lock()), clock, stop).await;
            Ok(())
        });
        Ok(())
    }
}
