//! What a change of the input changes for a proxy, resource by resource.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use envoy_json::compare::{Difference, compare};
use serde_json::{Value, json};

use crate::generate::{Received, ResourceType};

/// Longest value that stands on one line.
const LINE: usize = 80;

/// One resource that is not what it was.
#[derive(Debug)]
pub(crate) struct Changed {
    kind: ResourceType,
    name: String,
    how: How,
}

#[derive(Debug)]
enum How {
    Added(Value),
    Removed,
    Fields(Vec<Difference>),
}

/// Lists the resources of some types that differ, by type and name.
pub(crate) fn between(
    old: &Received,
    new: &Received,
    types: &BTreeSet<ResourceType>,
) -> Vec<Changed> {
    let mut changes = Vec::new();
    for kind in types.iter().copied() {
        let before: BTreeMap<&str, &Value> = old.resources(kind).collect();
        let after: BTreeMap<&str, &Value> = new.resources(kind).collect();
        let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
        for name in names {
            let how = match (before.get(name), after.get(name)) {
                (None, Some(value)) => How::Added((*value).clone()),
                (Some(_), None) => How::Removed,
                (Some(old), Some(new)) if old != new => How::Fields(compare(old, new)),
                _ => continue,
            };
            let name = name.to_owned();
            changes.push(Changed { kind, name, how });
        }
    }
    changes
}

/// The differences for programs: a list of objects.
pub(crate) fn to_json(changes: &[Changed]) -> Value {
    let one = |changed: &Changed| {
        let mut object = json!({"list": changed.kind.list(), "name": changed.name});
        match &changed.how {
            How::Added(value) => {
                object["change"] = "added".into();
                object["resource"] = value.clone();
            }
            How::Removed => object["change"] = "removed".into(),
            How::Fields(fields) => {
                object["change"] = "changed".into();
                let field =
                    |d: &Difference| json!({"path": d.path, "old": d.expected, "new": d.got});
                object["fields"] = fields.iter().map(field).collect();
            }
        }
        object
    };
    changes.iter().map(one).collect()
}

/// Writes the differences for people: `+` is new, `-` is gone, `~` is another than it was.
pub(crate) fn write(changes: &[Changed], out: &mut dyn Write) -> io::Result<()> {
    for changed in changes {
        let (list, name) = (changed.kind.list(), &changed.name);
        match &changed.how {
            How::Added(_) => writeln!(out, "+ {list} {name}")?,
            How::Removed => writeln!(out, "- {list} {name}")?,
            How::Fields(fields) => {
                writeln!(out, "~ {list} {name}")?;
                for field in fields {
                    match (&field.expected, &field.got) {
                        // What is gone as a whole is known by its place.
                        (Some(Value::Object(_)), None) => writeln!(out, "    - {}", field.path)?,
                        (old, new) => {
                            side(out, '-', &field.path, old.as_ref())?;
                            side(out, '+', &field.path, new.as_ref())?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Writes one side of a field; a long value on lines of its own.
fn side(out: &mut dyn Write, sign: char, path: &str, value: Option<&Value>) -> io::Result<()> {
    let Some(value) = value else {
        return Ok(());
    };
    let line = value.to_string();
    if line.len() <= LINE {
        return writeln!(out, "    {sign} {path}: {line}");
    }
    writeln!(out, "    {sign} {path}:")?;
    for line in serde_json::to_string_pretty(value)?.lines() {
        writeln!(out, "    {sign}   {line}")?;
    }
    Ok(())
}
