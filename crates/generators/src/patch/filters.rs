//! Lists of named filters: what all kinds of them have in common (envoyfilter §11, §13, §14).

use std::sync::Arc;

use envoy_json::merge::MergeError;
use envoy_types::pb::{
    envoy::{
        config::listener::v3::{Filter, ListenerFilter, filter, listener_filter},
        extensions::filters::network::http_connection_manager::v3::{HttpFilter, http_filter},
    },
    google::protobuf::Any,
};
use model::api::envoy_filter::Operation;
use prost::{Message, Name};

use super::{Patch, Run};

/// A filter with a name and a packed config.
pub(super) trait Named: Message + Name + Default {
    fn name(&self) -> &str;
    fn rename(&mut self, name: String);
    fn config(&mut self) -> Option<&mut Any>;
}

macro_rules! named {
    ($($type:ty, $module:ident;)*) => { $(
        impl Named for $type {
            fn name(&self) -> &str {
                &self.name
            }

            fn rename(&mut self, name: String) {
                self.name = name;
            }

            fn config(&mut self) -> Option<&mut Any> {
                match &mut self.config_type {
                    Some($module::ConfigType::TypedConfig(config)) => Some(config),
                    _ => None,
                }
            }
        }
    )* };
}

named! {
    Filter, filter;
    HttpFilter, http_filter;
    ListenerFilter, listener_filter;
}

/// Applies an operation that changes a list; `anchor` is the name that the patch states. Tells
/// whether the list changed.
pub(super) fn change<F: Named + Clone>(
    list: &mut Vec<F>,
    patch: &Arc<Patch>,
    anchor: Option<&str>,
    run: &Run,
) -> bool {
    let found = anchor.and_then(|name| list.iter().position(|filter| filter.name() == name));
    let at = match (patch.operation, anchor, found) {
        (Operation::Add, ..) | (Operation::InsertAfter, None, _) => list.len(),
        (Operation::InsertFirst, ..) | (Operation::InsertBefore, None, _) => 0,
        (Operation::InsertAfter, Some(_), Some(at)) => at + 1,
        (Operation::InsertBefore, Some(_), Some(at)) => at,
        (Operation::Replace, Some(_), Some(at)) => {
            let Some(value) = patch.typed(run) else {
                return false;
            };
            list[at] = value;
            run.applied(patch);
            return true;
        }
        (Operation::Remove, Some(name), Some(_)) => {
            list.retain(|filter| filter.name() != name);
            run.applied(patch);
            return true;
        }
        (operation, Some(name), None) => {
            run.missed(
                patch,
                &format_args!("{operation}: no filter is called {name:?}"),
            );
            return false;
        }
        (operation, ..) => {
            run.missed(
                patch,
                &format_args!("{operation} without the name of a filter does nothing"),
            );
            return false;
        }
    };
    let Some(value) = patch.typed(run) else {
        return false;
    };
    list.insert(at, value);
    run.applied(patch);
    true
}

/// Merges a patch into one filter: its name and its config. Filters without config stay as they are.
pub(super) fn merge<F: Named + Clone>(
    filter: &mut F,
    patch: &Arc<Patch>,
    rename: bool,
    run: &Run,
) -> bool {
    let name = filter.name().to_owned();
    let Some(target) = filter.config() else {
        run.missed(
            patch,
            &format_args!("MERGE: {name:?} has no configuration of its own"),
        );
        return false;
    };
    let Some(mut value) = patch.typed::<F>(run) else {
        return false;
    };
    if let Some(config) = value.config()
        && let Err(error) = envoy_json::merge::merge_any(target, config)
    {
        run.failed(patch, &format_args!("{name:?}: {error}"));
        // Where one cannot be decoded the name changes nevertheless (§13).
        if matches!(error, MergeError::Types { .. }) {
            return false;
        }
    }
    if rename && !value.name().is_empty() {
        filter.rename(value.name().to_owned());
    }
    run.applied(patch);
    true
}
