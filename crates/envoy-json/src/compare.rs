//! Differences of two JSON values, for people.

use std::fmt;

use serde_json::Value;

/// One difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Where: `filterChains[0].filters[2].typedConfig`; empty at the top.
    pub path: String,
    /// What was expected there; `None` when nothing was.
    pub expected: Option<Value>,
    /// What is there; `None` when nothing is.
    pub got: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, got {}",
            self.path,
            show(self.expected.as_ref()),
            show(self.got.as_ref())
        )
    }
}

fn show(value: Option<&Value>) -> String {
    const LONGEST: usize = 400;
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let mut text = value.to_string();
    if text.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Compares two values: objects by key, lists by position, numbers by value.
///
/// The differences come in the order of `expected`, with what it lacks last at each level. Where lists of
/// named objects differ in length or order, elements are matched by name, so that one missing element
/// does not show as a difference of all that follow; the order is then a difference of its own.
pub fn compare(expected: &Value, got: &Value) -> Vec<Difference> {
    let mut differences = Vec::new();
    values("", expected, got, &mut differences);
    differences
}

fn values(path: &str, expected: &Value, got: &Value, into: &mut Vec<Difference>) {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (key, value) in expected {
                let path = join(path, key);
                match got.get(key) {
                    Some(got) => values(&path, value, got, into),
                    None => into.push(missing(path, value)),
                }
            }
            for (key, value) in got {
                if !expected.contains_key(key) {
                    into.push(surplus(join(path, key), value));
                }
            }
        }
        (Value::Array(expected), Value::Array(got)) => lists(path, expected, got, into),
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        _ if expected == got => {}
        _ => into.push(Difference {
            path: path.to_owned(),
            expected: Some(expected.clone()),
            got: Some(got.clone()),
        }),
    }
}

fn lists(path: &str, expected: &[Value], got: &[Value], into: &mut Vec<Difference>) {
    if let (Some(expected_names), Some(got_names)) = (names(expected), names(got))
        && expected_names != got_names
    {
        for (name, value) in expected_names.iter().zip(expected) {
            let path = format!("{path}[{name}]");
            match got_names.iter().position(|got| got == name) {
                Some(at) => values(&path, value, &got[at], into),
                None => into.push(missing(path, value)),
            }
        }
        for (name, value) in got_names.iter().zip(got) {
            if !expected_names.contains(name) {
                into.push(surplus(format!("{path}[{name}]"), value));
            }
        }
        let in_both = |names: &[&str], others: &[&str]| -> Vec<Value> {
            names
                .iter()
                .filter(|name| others.contains(name))
                .map(|name| Value::from(*name))
                .collect()
        };
        let (expected, got) = (
            in_both(&expected_names, &got_names),
            in_both(&got_names, &expected_names),
        );
        if expected != got {
            into.push(Difference {
                path: format!("{path} (order)"),
                expected: Some(expected.into()),
                got: Some(got.into()),
            });
        }
        return;
    }
    for (at, value) in expected.iter().enumerate() {
        let path = format!("{path}[{at}]");
        match got.get(at) {
            Some(got) => values(&path, value, got, into),
            None => into.push(missing(path, value)),
        }
    }
    for (at, value) in got.iter().enumerate().skip(expected.len()) {
        into.push(surplus(format!("{path}[{at}]"), value));
    }
}

/// The names of the elements, if all have one and all are different.
fn names(list: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = list.iter().map(name).collect::<Option<_>>()?;
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    (sorted.len() == names.len()).then_some(names)
}

/// Returns the name of a resource: `name`, or `clusterName` of endpoints.
pub fn name(resource: &Value) -> Option<&str> {
    resource
        .get("name")
        .or_else(|| resource.get("clusterName"))?
        .as_str()
}

fn join(path: &str, key: &str) -> String {
    // Keys of maps may hold dots.
    let key = if key.contains(['.', '[', ' ']) {
        format!("[{key:?}]")
    } else {
        key.to_owned()
    };
    if path.is_empty() || key.starts_with('[') {
        format!("{path}{key}")
    } else {
        format!("{path}.{key}")
    }
}

fn missing(path: String, expected: &Value) -> Difference {
    Difference {
        path,
        expected: Some(expected.clone()),
        got: None,
    }
}

fn surplus(path: String, got: &Value) -> Difference {
    Difference {
        path,
        expected: None,
        got: Some(got.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(expected: &Value, got: &Value, differences: &[&str]) {
        let found: Vec<String> = compare(expected, got)
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(found, differences);
    }

    #[test]
    fn equal_values_have_no_difference() {
        check(
            &json!({"a": [1, {"b": null}]}),
            &json!({"a": [1.0, {"b": null}]}),
            &[],
        );
    }

    #[test]
    fn differences_name_their_path() {
        check(
            &json!({"a": [{"b": 1, "c.d": 2}], "x": 1}),
            &json!({"a": [{"b": 2, "c.d": 3}, 4], "y": 1}),
            &[
                "a[0].b: expected 1, got 2",
                "a[0][\"c.d\"]: expected 2, got 3",
                "a[1]: expected nothing, got 4",
                "x: expected 1, got nothing",
                "y: expected nothing, got 1",
            ],
        );
    }

    #[test]
    fn named_elements_are_matched_and_their_order_counts() {
        let filter = |name: &str, port: u32| json!({"name": name, "port": port});
        check(
            &json!([filter("a", 1), filter("b", 1), filter("c", 1)]),
            &json!([filter("c", 1), filter("a", 2), filter("d", 1)]),
            &[
                "[a].port: expected 1, got 2",
                "[b]: expected {\"name\":\"b\",\"port\":1}, got nothing",
                "[d]: expected nothing, got {\"name\":\"d\",\"port\":1}",
                " (order): expected [\"a\",\"c\"], got [\"c\",\"a\"]",
            ],
        );
    }
}
