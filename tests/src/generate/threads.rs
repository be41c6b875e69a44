//! Law 1: the same bytes whatever the order of arrival and however many threads build.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context as _, Result};
use istiod::generate::ResourceType;

use super::{Loaded, random::Random, received_of};
use crate::conformance::case::CaseInput;

/// What proxies receive: by `proxy/list`, names and versions of the resources, sorted by name.
pub type Versions = BTreeMap<String, String>;

/// Generates on a pool of so many threads what each proxy of a case receives, with the objects
/// arriving in an order of their own for each `order`; 0 is that of the files.
///
/// # Errors
/// When the input cannot be loaded, or there are no such threads.
pub fn on_threads(input: &CaseInput, threads: usize, order: usize) -> Result<Versions> {
    let mut loaded = Loaded::of(input, 0)?;
    if order > 0 {
        Random::of(&input.id, order as u64).shuffle(&mut loaded.objects);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.context("start threads")?;
    pool.install(|| {
        let mut versions = Versions::new();
        for (proxy, (_, received)) in received_of(&loaded, input)? {
            for kind in ResourceType::ALL {
                let Some((_, set)) = received.asked.get(&kind) else {
                    continue;
                };
                let mut list = String::new();
                for resource in set.iter() {
                    writeln!(list, "{} {}", resource.name(), resource.version())?;
                }
                versions.insert(format!("{proxy}/{}", kind.list()), list);
            }
        }
        Ok(versions)
    })
}
