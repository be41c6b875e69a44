//! The services of the secure port: xDS and certificates.

use std::{sync::Arc, time::SystemTime};

use anyhow::Context as _;
use generators::Mesh;
use model::MeshState;
use parking_lot::Mutex;
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
    http,
    settings::{Settings, security::SecuritySettings},
};

/// A secure port that listens and does not serve yet.
#[derive(Debug)]
pub(crate) struct Listening {
    port: Arc<SecurePort>,
    listener: TcpListener,
}

/// The wall clock of certificates and tokens.
#[expect(
    clippy::disallowed_methods,
    reason = "the one wall clock of identities"
)]
fn clock() -> SystemTime {
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
pub(crate) fn open(
    args: &SecureArgs,
    settings: &Settings,
    state: &MeshState,
) -> anyhow::Result<Option<Listening>> {
    let Some(address) = args.secure.0 else {
        tracing::info!("there is no secure port");
        return Ok(None);
    };
    let port =
        SecurePort::open(args, settings, trust(state), clock()).context("open the secure port")?;
    let listener = http::bind(address)?;
    port.report();
    tracing::info!(address = %listener.local_addr()?, "listening for xDS over TLS");
    Ok(Some(Listening {
        port: Arc::new(port),
        listener,
    }))
}

impl Listening {
    /// Starts to serve, and to follow changes.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn serve(
        self,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        server: &Server<Mesh>,
        latest: &Arc<Mutex<MeshState>>,
        transport: Transport,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let Self { port, listener } = self;
        let reviewers: Arc<[_]> = port.reviewers().into();
        let settings = port.settings();
        let state = latest.clone();
        let certificates = CertificateService::new(Signing {
            store: port.store().clone(),
            lifetimes: settings.lifetimes,
            trust_domain: Box::new(move || state.lock().mesh.trust_domain.clone()),
            clock,
        })
        .context("start the signing threads")?;
        let ads = server.service().receive_bytes(transport.receive_bytes);
        let ads = Guarded::new(
            ads,
            demand(settings),
            "authentication failure",
            reviewers.clone(),
            clock,
        );
        let certificates = Guarded::new(
            certificates,
            Demand::Identity,
            "request authenticate failure",
            reviewers,
            clock,
        );
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
