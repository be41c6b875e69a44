use std::fmt::Write as _;

use serde_json::json;

use super::*;

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "callers write a literal")]
fn check(text: &str, expected: Value) {
    let documents = documents(text);
    let values: Vec<Value> = documents
        .into_iter()
        .map(|d| d.map_or_else(|e| json!(e.reason), |d| d.value))
        .collect();
    assert_eq!(Value::Array(values), expected, "{text}");
}

#[test]
fn scalars_follow_yaml_1_1() {
    check(
        "a: yes\nb: Off\nc: 'yes'\nd: y\ne: nope",
        json!([{"a": true, "b": false, "c": "yes", "d": true, "e": "nope"}]),
    );
    check(
        "a: 017\nb: 0x1F\nc: 0o17\nd: 08\ne: 1_000\nf: -5",
        json!([{"a": 15, "b": 31, "c": 15, "d": 8, "e": 1000, "f": -5}]),
    );
    check(
        "a: 1.5\nb: 80.0\nc: 1e3\nd: 1.2.3\ne: 1:30\nf: .5",
        json!([{"a": 1.5, "b": 80, "c": 1000, "d": "1.2.3", "e": "1:30", "f": 0.5}]),
    );
    check(
        "a: 2024-01-01\nb: 2024-01-01T00:00:00Z\nc: ~\nd:",
        json!([{"a": "2024-01-01", "b": "2024-01-01T00:00:00Z", "c": null, "d": null}]),
    );
    check(
        "a: !!str 5\nb: !!binary aGk=\nc: !!int '7'",
        json!([{"a": "5", "b": "hi", "c": 7}]),
    );
    check(
        "80: a\ntrue: b\n1.5: c",
        json!([{"80": "a", "true": "b", "1.5": "c"}]),
    );
    check(
        "a: 18446744073709551615\nb: -9223372036854775808",
        json!([{"a": u64::MAX, "b": i64::MIN}]),
    );
    check(
        "a: 10.0.0.1\nb: 0\nc: 00\nd: 1.32.0\ne: +1",
        json!([{"a": "10.0.0.1", "b": 0, "c": 0, "d": "1.32.0", "e": 1}]),
    );
}

#[test]
fn anchors_and_merges_are_expanded() {
    check(
        "base: &b {x: 1, y: 2}\nother: &o {z: 3}\na:\n  <<: [*b, *o]\n  'y': 5\nlist: [*b]",
        json!([{"base": {"x": 1, "true": 2}, "other": {"z": 3}, "a": {"x": 1, "true": 2, "z": 3, "y": 5}, "list": [{"x": 1, "true": 2}]}]),
    );
    check(
        "b: &b {p: 1, q: 2}\na: {q: 5, <<: *b}",
        json!([{"b": {"p": 1, "q": 2}, "a": {"q": 5, "p": 1}}]),
    );
}

#[test]
fn a_broken_document_does_not_hide_its_neighbours() {
    let text = "a: 1\n---\nb: [1\n---\nc: 3\n";
    let documents = documents(text);
    assert_eq!(documents.len(), 3);
    let lines: Vec<_> = documents
        .iter()
        .map(|d| d.as_ref().map(|d| d.line).map_err(|e| e.line))
        .collect();
    assert_eq!(lines[0], Ok(1));
    assert!(
        lines[1].is_err_and(|line| (3..=4).contains(&line)),
        "{lines:?}"
    );
    assert_eq!(lines[2], Ok(5));
}

#[test]
fn separators_and_json_streams() {
    check("# only a comment\n", json!([]));
    check(
        "---\n---\n# nothing\n--- # here\na: 1\n...\n---\nb: |\n  text\n  --- not a separator\n",
        json!([{"a": 1}, {"b": "text\n--- not a separator\n"}]),
    );
    check("%YAML 1.1\n---\na: 1\n", json!([{"a": 1}]));
    check(
        "{\"a\": 1}\n{\"b\": 2}\n---\n{\"c\": 3}",
        json!([{"a": 1}, {"b": 2}, {"c": 3}]),
    );
    check(
        "{a: 1, b: [x, {c: no}]}",
        json!([{"a": 1, "b": ["x", {"c": false}]}]),
    );
    check(
        "\u{feff}a: 1\r\n---\r\nb: 2\r\n",
        json!([{"a": 1}, {"b": 2}]),
    );
}

#[test]
fn hostile_documents_are_refused() {
    check(&"[".repeat(5000), json!(["recursion limit exceeded"]));
    check(&"- ".repeat(500), json!(["nested too deeply"]));
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..9 {
        let refs = vec![format!("*a{}", i - 1); 10].join(",");
        let _ = writeln!(bomb, "a{i}: &a{i} [{refs}]");
    }
    check(&bomb, json!(["aliases make the document too large"]));
    check("? [a]\n: b\n", json!(["a key must be a scalar"]));
    check("a: .inf", json!([".inf has no form in JSON"]));
}

#[test]
fn fields_have_lines() {
    let text = "\n# c\nkind: X\nspec:\n  http:\n  - timeout: 5s\n  - match:\n      a/b: 1\n";
    let documents = documents(text);
    let document = documents[0].as_ref().unwrap();
    assert_eq!(document.line, 3);
    let lines = document.lines();
    let find = |path| lines.find(path).unwrap();
    assert_eq!(find("spec"), 4);
    assert_eq!(find("spec.http[0].timeout"), 6);
    assert_eq!(find("spec.http[1]"), 7);
    assert_eq!(find("spec.http[1].match[\"a/b\"]"), 8);
    assert_eq!(find("spec.http[1].match[\"a/b\"].c[3].d"), 8);
    assert_eq!(find("spec.http[1].route[0].host"), 7);
    assert_eq!(find("nothing"), 3);
    let second = super::documents("{\"a\": 1}\n{\"b\":\n {\"c\": 2}}");
    let second = second[1].as_ref().unwrap();
    assert_eq!((second.line, second.lines().find("b.c")), (2, Some(2)));
}

#[test]
fn fields_of_objects_have_lines_in_lists_too() {
    let text = "kind: A\nspec:\n  a: 1\n---\nkind: List\nitems:\n- kind: B\n  spec:\n    b: 1\n- kind: C\n";
    assert_eq!(line_in(text, 1, "spec.a"), Some(3));
    assert_eq!(line_in(text, 7, "spec.b"), Some(9));
    assert_eq!(line_in(text, 7, "spec.c"), Some(8));
    assert_eq!(line_in(text, 10, "spec.b"), Some(10));
    assert_eq!(line_in("", 1, "spec"), None);
}

#[test]
fn duplicate_keys_are_noted_and_the_last_counts() {
    let documents = documents("a: 1\nb: 2\na: 3\n");
    let document = documents[0].as_ref().unwrap();
    assert_eq!(document.value, json!({"a": 3, "b": 2}));
    assert_eq!(document.duplicates, [("a".to_owned(), 3)]);
}
