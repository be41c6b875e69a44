//! Whom changed Secrets and `ConfigMap`s concern: those who asked for them, unless the configuration
//! that is derived from them changed too.

use std::sync::Arc;

use model::{Kind, MeshState, NamespacedName, PushRequest};
use xds::{Change, Touched, type_url};

use super::name::names_of;
use crate::Mesh;

/// What a change of nothing but Secrets and `ConfigMap`s touches of a type; `None` for other changes.
pub(crate) fn touched(change: &Change<'_, Mesh>, type_url: &str) -> Option<Touched> {
    let request = &change.update.0;
    let from = change.from?.state();
    if !is_about_secrets(request) || !is_same_besides(from, change.to.state()) {
        return None;
    }
    match type_url {
        type_url::SECRET => {
            let names = request.changed.iter().flat_map(|key| {
                let is_secret = key.kind == Kind::Secret;
                names_of(
                    is_secret,
                    &NamespacedName::new(key.namespace.clone(), key.name.clone()),
                )
            });
            Some(Touched::Named(names.collect()))
        }
        // Wasm modules are pulled with credentials from Secrets.
        type_url::EXTENSION => None,
        _ => Some(Touched::Nothing),
    }
}

fn is_about_secrets(request: &PushRequest) -> bool {
    let is_secret = |kind: Kind| matches!(kind, Kind::Secret | Kind::ConfigMap);
    !request.forced
        && request.endpoints.is_empty()
        && !request.changed.is_empty()
        && request.changed.iter().all(|key| is_secret(key.kind))
}

/// Tells whether two states have the same of everything that is made from Secrets and `ConfigMap`s:
/// the mesh configuration and the objects that Gateway API stands for. What did not change is
/// shared, so that this costs nothing.
fn is_same_besides(from: &MeshState, to: &MeshState) -> bool {
    let (a, b) = (&from.objects, &to.objects);
    Arc::ptr_eq(&from.mesh, &to.mesh)
        && Arc::ptr_eq(&from.networks, &to.networks)
        && a.gateways.ptr_eq(&b.gateways)
        && a.virtual_services.ptr_eq(&b.virtual_services)
        && a.destination_rules.ptr_eq(&b.destination_rules)
}

#[cfg(test)]
mod tests {
    use model::{Config, ConfigKey, Meta, Object};
    use pushctx::PushContext;

    use super::*;
    use crate::Update;

    fn with(state: &MeshState, object: Object) -> PushContext {
        let mut state = state.clone();
        state.objects.insert(object);
        PushContext::build(state)
    }

    fn meta() -> Meta {
        Meta {
            namespace: "n".into(),
            name: "a".into(),
            ..Meta::default()
        }
    }

    fn secret() -> Object {
        Object::Secret(Arc::new(Config {
            meta: meta(),
            spec: model::api::kubernetes::Secret::default(),
        }))
    }

    fn gateway() -> Object {
        Object::Gateway(Arc::new(Config {
            meta: meta(),
            spec: model::api::Gateway::default(),
        }))
    }

    #[track_caller]
    fn check(to: &PushContext, keys: &[(Kind, &str)], type_url: &str, expected: Option<&Touched>) {
        let from = PushContext::build(MeshState::default());
        // Both share what the first one has.
        let mut base = from.state().clone();
        base.objects = to.state().objects.clone();
        let to = PushContext::build(base);
        let changed = keys
            .iter()
            .map(|(kind, name)| ConfigKey::new(*kind, "n", *name));
        let update = Update(PushRequest {
            changed: changed.collect(),
            ..PushRequest::default()
        });
        let change = Change {
            from: Some(&from),
            to: &to,
            update: &update,
        };
        assert_eq!(touched(&change, type_url).as_ref(), expected);
    }

    #[test]
    fn a_changed_secret_concerns_those_who_asked_for_it() {
        let state = MeshState::default();
        let to = with(&state, secret());
        let keys = [(Kind::Secret, "a")];
        let names = names_of(true, &NamespacedName::new("n", "a"));
        let named = Touched::Named(names.into_iter().collect());
        check(&to, &keys, type_url::SECRET, Some(&named));
        check(&to, &keys, type_url::LISTENER, Some(&Touched::Nothing));
        check(&to, &keys, type_url::EXTENSION, None);
        let more = [(Kind::Secret, "a"), (Kind::VirtualService, "v")];
        check(&to, &more, type_url::LISTENER, None);
        // A listener of Gateway API became valid with its certificate.
        check(&with(&state, gateway()), &keys, type_url::LISTENER, None);
    }
}
