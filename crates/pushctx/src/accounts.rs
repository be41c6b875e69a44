//! Identities that the servers of a service may have (service-registry §9.4).

use std::{collections::BTreeSet, sync::Arc};

use model::Service;

use crate::{PushContext, order::CreationOrder, service::of_key};

impl PushContext {
    /// Lists the identities of a service's endpoints and those that it declares, each `spiffe://`
    /// one repeated for every alias of the trust domain; sorted, without duplicates.
    ///
    /// Of several services with one key, the declaration of the youngest counts.
    pub fn service_accounts(&self, service: &Service) -> Arc<[Arc<str>]> {
        let key = service.key();
        let of_endpoints = self.endpoints(&key).map(|e| e.service_accounts.clone());
        let declares = self.services().declares_accounts(&key);
        if !declares && self.mesh().trust_domain_aliases.is_empty() {
            return of_endpoints.unwrap_or_default();
        }
        let declared = of_key(self.state(), &key).max_by(|a, b| a.by_creation(b));
        let mut accounts: BTreeSet<Arc<str>> = BTreeSet::new();
        let all = of_endpoints.iter().flat_map(|a| a.iter());
        for account in all.chain(declared.into_iter().flat_map(|s| &s.service_accounts)) {
            accounts.insert(account.clone());
            let path = account
                .strip_prefix("spiffe://")
                .and_then(|rest| rest.split_once('/'));
            let Some((_, path)) = path else { continue };
            for alias in &self.mesh().trust_domain_aliases {
                accounts.insert(format!("spiffe://{alias}/{path}").into());
            }
        }
        accounts.into_iter().collect()
    }
}
