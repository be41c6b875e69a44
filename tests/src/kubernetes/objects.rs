//! Objects of a cluster: applied as text, as `kubectl apply` would.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, TypeMeta},
    discovery::{self, Scope},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Cluster, SOON, credentials};

/// Time between two looks at a kind that is not served yet.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// Applies every object of a YAML text, in its order. Lists are not taken apart.
///
/// # Errors
/// When the text is not YAML, or the API server refuses an object: says which.
pub async fn apply(client: &Client, text: &str) -> Result<()> {
    for object in documents(text)? {
        let name = label(&object);
        apply_one(client, object)
            .await
            .with_context(|| format!("apply {name}"))?;
    }
    Ok(())
}

/// Deletes every object of a YAML text, in its order.
///
/// # Errors
/// When the text is not YAML, or the API server refuses: says which.
pub async fn delete(client: &Client, text: &str) -> Result<()> {
    for object in documents(text)? {
        let name = label(&object);
        let (api, object) = api_of(client, object).await?;
        let own = object.metadata.name.as_deref().unwrap_or_default();
        api.delete(own, &DeleteParams::default())
            .await
            .with_context(|| format!("delete {name}"))?;
    }
    Ok(())
}

impl Cluster {
    /// Defines custom kinds, and waits until they are served.
    ///
    /// # Errors
    /// When the API server refuses one, or does not serve it after half a minute.
    pub async fn define(&self, kinds: &str) -> Result<()> {
        let client = self.client().await?;
        apply(&client, kinds).await?;
        for kind in documents(kinds)? {
            let spec = &kind["spec"];
            let versions = spec["versions"].as_array().into_iter().flatten();
            for version in versions.filter(|version| version["served"] == true) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (group, version) = (text(&spec["group"]), text(&version["name"]));
                let path = format!("/apis/{group}/{version}/{}", text(&spec["names"]["plural"]));
                served(&client, &path).await?;
            }
        }
        Ok(())
    }

    /// Applies every object of a YAML text as an administrator; see [`apply`].
    ///
    /// # Errors
    /// When the text is not YAML, or the API server refuses an object.
    pub async fn apply(&self, text: &str) -> Result<()> {
        apply(&self.client().await?, text).await
    }

    /// Makes a namespace in which pods are admitted: one with a service account `default`.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.apply(&namespace.to_string()).await?;
        self.service_account(name, "default").await
    }

    /// Makes a service account.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<()> {
        service_account(&self.client().await?, namespace, name).await
    }

    /// Returns a token of a service account for these audiences; for the API server itself, if there
    /// are none. It is valid for an hour.
    ///
    /// # Errors
    /// When there is no such account.
    pub async fn token(&self, namespace: &str, name: &str, audiences: &[&str]) -> Result<String> {
        token(&self.client().await?, namespace, name, audiences).await
    }

    /// Writes a kubeconfig of a service account, and returns where it is.
    ///
    /// # Errors
    /// When there is no such account.
    pub async fn kubeconfig_of(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.token(namespace, name, &[]).await?;
        let whose = format!("{namespace}-{name}");
        credentials::write_for_token(&self.setup.folder, self.setup.api, &whose, &token)
    }

    /// Returns a client of whom a kubeconfig is.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client_of(&self, kubeconfig: &Path) -> Result<Client> {
        credentials::client(kubeconfig).await
    }
}

/// Makes a service account.
pub(super) async fn service_account(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let metadata = json!({"namespace": namespace, "name": name});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    apply(client, &account.to_string()).await
}

/// Asks for a token of a service account that is valid for an hour.
pub(super) async fn token(
    client: &Client,
    namespace: &str,
    name: &str,
    audiences: &[&str],
) -> Result<String> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": audiences, "expirationSeconds": 3600},
    });
    let request = hyper::Request::post(path)
        .header("content-type", "application/json")
        .body(request.to_string().into_bytes())?;
    let answer: Value = client.request(request).await?;
    let token = answer["status"]["token"].as_str().map(str::to_owned);
    token.context("a token request that is answered without a token")
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = intake::yaml_values(text)
        .map_err(|e| anyhow!("line {}, column {}: {}", e.line, e.column, e.reason))?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

fn label(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    format!("{} {namespace}/{name}", text(&object["kind"]))
}

async fn apply_one(client: &Client, object: Value) -> Result<()> {
    let (api, object) = api_of(client, object).await?;
    let name = object
        .metadata
        .name
        .clone()
        .context("an object without a name")?;
    let parameters = PatchParams::apply("test").force();
    api.patch(&name, &parameters, &Patch::Apply(&object))
        .await?;
    // What is beside the content is not written with it.
    if object.data.get("status").is_some() {
        api.patch_status(&name, &parameters, &Patch::Apply(&object))
            .await?;
    }
    Ok(())
}

async fn api_of(client: &Client, object: Value) -> Result<(Api<DynamicObject>, DynamicObject)> {
    let object: DynamicObject = serde_json::from_value(object).context("not an object")?;
    let types: &TypeMeta = object.types.as_ref().context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
    let api = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    Ok((api, object))
}

/// Waits until a kind is served.
async fn served(client: &Client, path: &str) -> Result<()> {
    let deadline = Instant::now() + SOON;
    loop {
        let request = hyper::Request::get(format!("{path}?limit=1")).body(Vec::new())?;
        let Err(error) = client.request_text(request).await else {
            return Ok(());
        };
        ensure!(Instant::now() < deadline, "{path} is not served: {error}");
        sleep(LOOK).await;
    }
}
