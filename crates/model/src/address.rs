//! The addresses of a service as a proxy sees them (service-registry §2).

use std::{net::IpAddr, sync::Arc};

use crate::{
    features::Features,
    proxy::{Proxy, ProxyType},
    service::{Service, UNSPECIFIED_ADDRESS},
};

/// The facts of a proxy that decide which addresses of a service it uses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of the proxy"
)]
pub struct AddressView {
    /// The proxy's cluster; empty when it states none.
    pub cluster: Arc<str>,
    /// The proxy has IPv4.
    pub v4: bool,
    /// The proxy has IPv6.
    pub v6: bool,
    /// Addresses of both families are used side by side.
    pub dual_stack: bool,
    /// The proxy resolves names itself and so consumes auto-allocated addresses.
    pub auto_allocated: bool,
}

impl AddressView {
    /// Reads the facts off a proxy.
    pub fn of(proxy: &Proxy, features: &Features) -> Self {
        let captures_dns = proxy.metadata.dns_capture || proxy.proxy_type == ProxyType::Waypoint;
        Self {
            cluster: proxy.metadata.cluster_id.as_str().into(),
            v4: proxy.supports_v4(),
            v6: proxy.supports_v6(),
            dual_stack: proxy.supports_v4()
                && proxy.supports_v6()
                && (features.dual_stack || features.ambient),
            auto_allocated: captures_dns
                && (features.ip_autoallocate || proxy.metadata.dns_auto_allocate),
        }
    }

    /// Tells whether the proxy can use `address`; whatever is no IP address or CIDR counts as usable.
    fn supports(&self, address: &str) -> bool {
        match address
            .split('/')
            .next()
            .unwrap_or_default()
            .parse::<IpAddr>()
        {
            Ok(IpAddr::V4(_)) => self.v4,
            Ok(IpAddr::V6(_)) => self.v6,
            Err(_) => true,
        }
    }

    /// Keeps the usable addresses; of two families the first one's, unless both are used.
    fn filter(&self, addresses: &[Arc<str>]) -> Vec<Arc<str>> {
        if self.dual_stack {
            return addresses.to_vec();
        }
        let usable = addresses.iter().filter(|a| self.supports(a));
        let Some(first) = usable.clone().next() else {
            return Vec::new();
        };
        let v6 = first.contains(':');
        usable.filter(|a| a.contains(':') == v6).cloned().collect()
    }
}

impl Service {
    /// The service's addresses in the proxy's cluster.
    fn vips(&self, view: &AddressView) -> &[Arc<str>] {
        self.cluster_vips
            .get(&view.cluster)
            .map_or(&[], Vec::as_slice)
    }

    /// The one address that a listener of the proxy binds; [`UNSPECIFIED_ADDRESS`] when there is none.
    pub fn address_for(&self, view: &AddressView) -> Arc<str> {
        if !view.cluster.is_empty()
            && let Some(vip) = self.vips(view).iter().find(|a| view.supports(a))
        {
            return vip.clone();
        }
        if &*self.default_address == UNSPECIFIED_ADDRESS && view.auto_allocated {
            if view.v4 && !self.auto_allocated_v4.is_empty() {
                return self.auto_allocated_v4.clone();
            }
            if view.v6 && !self.auto_allocated_v6.is_empty() {
                return self.auto_allocated_v6.clone();
            }
        }
        self.default_address.clone()
    }

    /// All addresses of the service that the proxy uses.
    pub fn addresses_for(&self, view: &AddressView) -> Vec<Arc<str>> {
        let mut addresses = self.vips(view).to_vec();
        if addresses.is_empty() && view.auto_allocated {
            let auto = [&self.auto_allocated_v4, &self.auto_allocated_v6];
            addresses.extend(auto.into_iter().filter(|a| !a.is_empty()).cloned());
        }
        let addresses = view.filter(&addresses);
        if !addresses.is_empty() {
            return addresses;
        }
        let default = std::slice::from_ref(&self.default_address);
        if self.cluster_vips.is_empty() {
            default.to_vec()
        } else {
            view.filter(default)
        }
    }

    /// Tells whether the service has an address of its own in `cluster`, or an allocated one.
    pub fn has_address_in(&self, cluster: &str) -> bool {
        self.cluster_vips
            .get(cluster)
            .is_some_and(|v| !v.is_empty())
            || &*self.default_address != UNSPECIFIED_ADDRESS
            || !self.auto_allocated_v4.is_empty()
            || !self.auto_allocated_v6.is_empty()
    }
}
