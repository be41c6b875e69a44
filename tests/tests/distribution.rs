//! The ledger of running control planes, over HTTP: what is served is what the `OpenAPI` file says, and
//! any replica answers for all. Needs no Envoy.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::{
    control_plane::{ControlPlane, Setup, binary, use_binary},
    corpus::workspace,
    http,
    load::{self, Form, Options},
};
use tokio::process::Command;

fn setup() {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
}

fn api() -> Result<Value> {
    let file = workspace().join("docs/distribution-api.json");
    serde_json::from_str(&fs::read_to_string(file)?).context("read the OpenAPI file")
}

/// Checks a value against a schema, as much of JSON Schema as the file uses.
fn check(api: &Value, schema: &Value, value: &Value, at: &str) -> Result<()> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let target = &api["components"]["schemas"][name];
        ensure!(target.is_object(), "{at}: no schema {name}");
        return check(api, target, value, at);
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        other => anyhow::bail!("{at}: type {other:?}"),
    };
    ensure!(fits, "{at}: {value} is no {}", schema["type"]);
    if let Some(values) = schema["enum"].as_array() {
        ensure!(
            values.contains(value),
            "{at}: {value} is none of {values:?}"
        );
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(api, &schema["items"], item, &format!("{at}[{index}]"))?;
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            ensure!(fields.contains_key(name), "{at}: no {name}");
        }
        for (name, field) in fields {
            let schema = &schema["properties"][name];
            ensure!(schema.is_object(), "{at}: {name} is not in the file");
            check(api, schema, field, &format!("{at}.{name}"))?;
        }
    }
    Ok(())
}

const OBJECTS: &str = "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: catalogue, namespace: shop, generation: 7}
spec:
  hosts: [catalogue.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
";

async fn control_plane(folder: &Path, name: &str, peers: &[String]) -> Result<ControlPlane> {
    setup();
    let config = folder.join("config");
    fs::create_dir_all(&config)?;
    fs::write(config.join("objects.yaml"), OBJECTS)?;
    let mut setup = Setup::new(config, folder)?;
    setup.log = folder.join(format!("{name}.log"));
    setup.environment.push(("POD_NAME".into(), name.into()));
    for peer in peers {
        setup.arguments.extend(["--peers".to_owned(), peer.clone()]);
    }
    ControlPlane::start(setup).await
}

async fn get(istiod: &ControlPlane, path: &str) -> Result<Value> {
    serde_json::from_str(&istiod.monitoring(path).await?).context("read an answer")
}

const CATALOGUE: &str = "/debug/distribution/configs/ServiceEntry/shop/catalogue";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_is_what_the_file_says() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let istiod = control_plane(folder.path(), "one", &["127.0.0.1:1".to_owned()]).await?;
    let api = api()?;
    let paths = api["paths"].as_object().context("paths")?;
    for path in paths.keys() {
        let filled = path
            .replace("{kind}", "ServiceEntry")
            .replace("{namespace}", "shop")
            .replace("{name}", "catalogue");
        let answer = get(&istiod, &filled).await?;
        let schema = &paths[path]["get"]["responses"]["200"]["content"]["application/json"];
        check(&api, &schema["schema"], &answer, path)?;
    }
    // Nothing is served beside it.
    for (path, status) in [
        ("/debug/distribution/else", 404),
        ("/debug/distribution/configs/Nothing/shop/catalogue", 400),
        ("/debug/distribution/configs/ServiceEntry/shop/nothing", 404),
        (
            "/debug/distribution/configs/ServiceEntry/shop/catalogue?hash=x",
            400,
        ),
        (
            "/debug/distribution/configs/ServiceEntry/shop/catalogue?nonsense=1",
            400,
        ),
    ] {
        for port in [istiod.setup().monitoring, istiod.setup().http] {
            let answer = http::get(port, "istiod", path, &[]).await?;
            ensure!(answer.status == status, "{path}: {answer:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_asked_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let peers = [
        "127.0.0.1:1".to_owned(),
        "no-such-host.invalid:15014".to_owned(),
    ];
    let istiod = control_plane(folder.path(), "one", &peers).await?;
    let answer = get(&istiod, CATALOGUE).await?;
    let lost: Vec<&str> = answer["unreachable"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|lost| lost["replica"].as_str())
        .collect();
    ensure!(
        lost == ["127.0.0.1:1", "no-such-host.invalid:15014"],
        "{answer}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_answers_for_all_and_none_twice() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let two = control_plane(folder.path(), "two", &[]).await?;
    let own = two.setup().monitoring.to_string();
    // It is among its own peers, as behind a headless Service.
    let one = control_plane(folder.path(), "one", &[own.clone(), own]).await?;
    let answer = get(&one, CATALOGUE).await?;
    let replicas = answer["replicas"].as_array().context("replicas")?;
    let name = |replica: &Value| replica["name"].as_str().unwrap_or_default()[..3].to_owned();
    let names: Vec<String> = replicas.iter().map(name).collect();
    ensure!(names == ["one", "two"], "{answer}");
    let roots: Vec<&Value> = replicas.iter().map(|replica| &replica["root"]).collect();
    ensure!(
        roots[0] == roots[1],
        "equal contents have equal roots: {answer}"
    );
    ensure!(answer["unreachable"] == json!([]), "{answer}");
    ensure!(answer["generation"] == 7, "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_a_status() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let istiod = control_plane(folder.path(), "one", &[]).await?;
    let address = istiod.setup().monitoring.to_string();
    let wait = async |arguments: &[&str], address: &str| -> Result<(Option<i32>, String)> {
        let output = Command::new(binary().await?)
            .args(["wait", "--for=distribution", "--address", address])
            .args(arguments)
            .output()
            .await?;
        let said = [&output.stdout[..], &output.stderr].concat();
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    let catalogue = "ServiceEntry/catalogue.shop";
    // Nobody is connected, and once everybody had time to come back that is all there is to wait for.
    let (status, said) = wait(&[catalogue, "--generation=7"], &address).await?;
    ensure!(status == Some(0), "{said}");
    let (status, said) = wait(&[catalogue, "--generation=8", "--timeout=1s"], &address).await?;
    ensure!(status == Some(1) && said.contains("not here yet"), "{said}");
    let (status, said) = wait(&[catalogue, "--timeout=1s"], "127.0.0.1:1").await?;
    ensure!(status == Some(2), "{said}");
    let (status, said) = wait(&["ServiceEntry/nothing.shop", "--timeout=1s"], &address).await?;
    ensure!(status == Some(2) && said.contains("not known"), "{said}");
    Ok(())
}

/// Longest time that an edit may take: far more than it does.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_another_content_and_another_root() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let istiod = control_plane(folder.path(), "one", &[]).await?;
    let before = get(&istiod, CATALOGUE).await?;
    let edited = OBJECTS
        .replace("DNS", "NONE")
        .replace("generation: 7", "generation: 8");
    fs::write(folder.path().join("config/objects.yaml"), edited)?;
    tests::process::until("the edit", SOON, async || {
        let after = get(&istiod, CATALOGUE).await?;
        ensure!(
            after["generation"] == 8 && after["stage"] == "published",
            "{after}"
        );
        ensure!(
            after["hash"] != before["hash"] && after["root"] != before["root"],
            "{after}"
        );
        let hash = before["hash"].as_str().context("a hash")?;
        let old = get(&istiod, &format!("{CATALOGUE}?hash={hash}")).await?;
        ensure!(old["stage"] == "superseded", "{old}");
        Ok(())
    })
    .await
}

/// A small fleet of two servers: whoever is said to have something has it. `cargo xtask load --truth` runs a
/// large one, and says how late answers are.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_said_to_have_what_it_has_not() -> Result<()> {
    setup();
    let options = Options {
        server: None,
        pid: None,
        config: None,
        environment: Vec::new(),
        form: Form::Kubernetes,
        services: 20,
        endpoints: 2,
        classes: 2,
        connections: 40,
        delta_percent: 50,
        connects_per_second: 1000,
        slow: 4,
        rejecting: 6,
        nodes: Vec::new(),
        churn: Vec::new(),
        changes: 0,
    };
    let truth = load::truth(&options, Duration::from_secs(10)).await?;
    println!("{truth}");
    ensure!(truth.false_has == 0, "{truth}");
    ensure!(truth.questions > 0 && truth.has > 0, "{truth}");
    Ok(())
}
