use std::fs;

use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Replaces a file, as editors do, so that its stamp differs however fast the test is.
    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    fn source(&self) -> FileSource {
        FileSource::open(FileInputs {
            config: vec![self.0.path().to_owned()],
            ..FileInputs::default()
        })
        .unwrap()
    }
}

fn namespace(name: &str, label: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{l: {label}}}}}\n---\n"
    )
}

#[track_caller]
fn check(source: &mut FileSource, expected: &[&str]) {
    let changes: Vec<String> = source
        .refresh()
        .into_iter()
        .map(|c| match c {
            Change::Apply(o) => format!("{}={}", o.meta().name, o.meta().labels["l"]),
            Change::Delete(key) => format!("-{}", key.name),
            Change::Mesh(m) => format!("mesh {}", m.trust_domain),
            Change::Networks(n) => format!("networks {}", n.networks.len()),
            other @ (Change::Resolved { .. }
            | Change::Files(_)
            | Change::Cluster { .. }
            | Change::ClusterGone(_)
            | Change::Bundles(_)
            | Change::Keys { .. }) => format!("{other:?}"),
        })
        .collect();
    assert_eq!(changes, expected);
}

#[track_caller]
fn check_findings(source: &FileSource, folder: &Folder, expected: &[&str]) {
    let prefix = format!("{}/", folder.0.path().display());
    let found: Vec<String> = source
        .report()
        .findings
        .iter()
        .map(|f| f.to_string().replace(&prefix, ""))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn edits_and_deletions_are_seen() {
    let folder = Folder::new();
    folder.write(
        "a.yaml",
        &[namespace("a", "one"), namespace("b", "one")].concat(),
    );
    folder.write(
        "sub/c.json",
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"c","labels":{"l":"one"}}}"#,
    );
    folder.write("notes.txt", "not: config");
    folder.write(".hidden/x.yaml", &namespace("x", "one"));
    let mut source = folder.source();
    check(&mut source, &["a=one", "b=one", "c=one"]);
    check(&mut source, &[]);
    folder.write("a.yaml", &[namespace("a", "two")].concat());
    check(&mut source, &["a=two", "-b"]);
    fs::remove_dir_all(folder.0.path().join("sub")).unwrap();
    check(&mut source, &["-c"]);
    assert_eq!(
        (source.report().files, source.report().object_count()),
        (1, 1)
    );
}

#[test]
fn broken_files_keep_their_last_good_content() {
    let folder = Folder::new();
    folder.write(
        "a.yaml",
        &[namespace("a", "one"), namespace("b", "one")].concat(),
    );
    let mut source = folder.source();
    check(&mut source, &["a=one", "b=one"]);
    folder.write("a.yaml", &[&namespace("a", "two"), "kind: [Names"].concat());
    check(&mut source, &[]);
    let reason = "the 2 objects read from this file before stay in force";
    let found = source.report().findings[0].to_string();
    assert!(
        source.report().has_errors() && found.contains(reason),
        "{found}"
    );
    folder.write("a.yaml", &namespace("a", "three"));
    check(&mut source, &["a=three", "-b"]);
    assert_eq!(source.report().findings, []);
}

#[test]
fn a_file_that_is_broken_from_the_start_spoils_nothing_else() {
    let folder = Folder::new();
    folder.write(
        "a.yaml",
        &[
            &namespace("a", "one"),
            "kind: [Names\n---\n",
            &namespace("b", "one"),
        ]
        .concat(),
    );
    let mut source = folder.source();
    check(&mut source, &["a=one", "b=one"]);
    assert_eq!(source.report().findings.len(), 1);
}

#[test]
fn refused_objects_keep_their_last_accepted_version() {
    let folder = Folder::new();
    let good = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: a, labels: {l: one}}\nspec: {egress: [{hosts: ['./*']}]}\n---\n";
    folder.write("a.yaml", &[good, &namespace("a", "one")].concat());
    let mut source = folder.source();
    check(&mut source, &["a=one", "s=one"]);
    let bad = good
        .replace("[{hosts", "[{hosts: 5, x")
        .replace("one", "two");
    folder.write("a.yaml", &format!("{bad}{}", namespace("a", "two")));
    check(&mut source, &["a=two"]);
    check_findings(
        &source,
        &folder,
        &[
            "a.yaml:4: error: Sidecar a/s: spec.egress[0].hosts: found the number 5, expected a list; its version of before stays in force",
        ],
    );
    folder.write("a.yaml", &namespace("a", "two"));
    // The namespace stands in another line now.
    check(&mut source, &["a=two", "-s"]);
}

#[test]
fn later_files_are_laid_over_earlier_ones() {
    let folder = Folder::new();
    folder.write("1.yaml", &namespace("a", "one"));
    folder.write("2.yaml", &namespace("a", "two"));
    let mut source = folder.source();
    check(&mut source, &["a=one", "a=two"]);
    let two = folder.0.path().join("2.yaml");
    check_findings(
        &source,
        &folder,
        &["1.yaml:1: warning: Namespace a: the one in 2.yaml:1 counts instead"],
    );
    folder.write("1.yaml", &namespace("a", "other"));
    check(&mut source, &[]);
    fs::remove_file(two).unwrap();
    check(&mut source, &["a=other"]);
}

#[test]
fn a_folder_that_goes_away_is_stale_not_empty() {
    let folder = Folder::new();
    folder.write("config/a.yaml", &namespace("a", "one"));
    let path = folder.0.path().join("config");
    let inputs = FileInputs {
        config: vec![path.clone()],
        ..FileInputs::default()
    };
    let mut source = FileSource::open(inputs).unwrap();
    check(&mut source, &["a=one"]);
    fs::rename(&path, folder.0.path().join("away")).unwrap();
    check(&mut source, &[]);
    assert!(source.report().has_errors());
    assert_eq!(source.report().object_count(), 1);
}

#[test]
fn mesh_files_are_reloaded() {
    let folder = Folder::new();
    folder.write("mesh", "trustDomain: one");
    folder.write("networks", "networks: {n: {}}");
    let inputs = FileInputs {
        mesh_config: Some(folder.0.path().join("mesh")),
        mesh_networks: Some(folder.0.path().join("networks")),
        ..FileInputs::default()
    };
    let mut source = FileSource::open(inputs).unwrap();
    check(&mut source, &["mesh one", "networks 1"]);
    folder.write("mesh", "trustDomain: [");
    check(&mut source, &[]);
    assert_eq!(source.report().findings.len(), 1);
    folder.write("mesh", "trustDomain: two");
    check(&mut source, &["mesh two"]);
    let missing = FileInputs {
        config: vec![folder.0.path().join("no")],
        ..FileInputs::default()
    };
    assert!(matches!(
        FileSource::open(missing),
        Err(FileError::Read { .. })
    ));
}

#[tokio::test]
async fn watching_reports_edits() {
    let folder = Folder::new();
    folder.write("a.yaml", &namespace("a", "one"));
    let mut source = folder.source();
    source.refresh();
    let (sender, mut batches) = tokio::sync::mpsc::channel(1);
    let driver = source.watch(sender).unwrap();
    let test = async {
        folder.write("a.yaml", &namespace("a", "two"));
        let batch = batches.recv().await.unwrap();
        assert!(matches!(&batch.changes[..], [Change::Apply(o)] if o.meta().labels["l"] == "two"));
        drop(batches);
    };
    tokio::join!(driver, test);
}
