//! Virtual hosts of a gateway.

use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::{
    envoy::config::route::v3::{VirtualHost, virtual_host::TlsRequirementType},
    google::protobuf::Any,
};
use model::fingerprint;

use super::{super::frame, assembly::GatewayParts, routes::Routes};
use crate::route;

/// A virtual host under construction.
#[derive(Default)]
pub(super) struct Host {
    pub(super) name: Arc<str>,
    pub(super) domains: Vec<Arc<str>>,
    /// The route lists that it has, with numbers that identify them.
    pub(super) routes: Vec<(usize, Arc<Routes>)>,
    pub(super) needs_tls: bool,
    pub(super) counts_attempts: bool,
    pub(super) session: Option<Box<Any>>,
}

impl Host {
    pub(super) fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            name,
            domains,
            routes,
            needs_tls,
            counts_attempts,
            session,
        } = self;
        let routes: Vec<u64> = routes.iter().map(|(_, routes)| routes.hash).collect();
        let session = session.as_ref().map(|any| (&any.type_url, &any.value));
        let flags = (needs_tls, counts_attempts);
        fingerprint::of(&(name, domains, routes, flags, session))
    }

    /// Encodes it as a field of a configuration.
    pub(super) fn encode(self, parts: &GatewayParts) -> Bytes {
        parts.hosts.get_or_build(self.fingerprint(), || {
            let lists = self.routes.iter().flat_map(|(_, routes)| &routes.list);
            let mut vh = VirtualHost {
                name: self.name.to_string(),
                domains: self.domains.iter().map(ToString::to_string).collect(),
                routes: lists.cloned().collect(),
                include_request_attempt_count: self.counts_attempts,
                ..VirtualHost::default()
            };
            vh.routes.sort_by_key(route::is_catch_all);
            if self.needs_tls {
                vh.require_tls = TlsRequirementType::All.into();
            }
            if let Some(config) = self.session {
                let filter = route::SESSION_FILTER.to_owned();
                vh.typed_per_filter_config.insert(filter, *config);
            }
            let mut bytes = Vec::new();
            frame::host(&vh, &mut bytes);
            frame::canonicalize(&mut bytes);
            bytes.into()
        })
    }
}
