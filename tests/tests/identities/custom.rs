//! Policies whose word somebody else has.

use tests::authz::{Authorizers, SAYS_SO, providers};

use super::*;

fn policy(provider: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: ext, namespace: app}}\n\
         spec:\n  selector: {{matchLabels: {{app: server}}}}\n  action: CUSTOM\n  \
         provider: {{name: {provider}}}\n  rules:\n  \
         - to: [{{operation: {{paths: [/guarded/*]}}}}]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn others_are_asked_over_http_and_grpc() -> Result<()> {
    let mut authorizers = Authorizers::start().await?;
    let (objects, config) = providers(&authorizers, "app", [free_port()?, free_port()?])?;
    let extras = Extras {
        objects,
        config: Some(config),
        egress: vec!["./ext-http.test".to_owned(), "./ext-grpc.test".to_owned()],
        ..Extras::default()
    };
    let mesh = Mesh::start_with("24h", extras).await?;
    let ask = async |path: &str, headers: &[(&str, &str)]| -> Result<Answer> {
        let ask = mesh.through_proxy();
        http::request("GET", ask.address, &ask.host, path, headers).await
    };
    for by in ["http", "grpc"] {
        mesh.write("policy.yaml", &policy(&format!("ext-{by}")))?;
        let denied = format!("not by {by}");
        mesh.eventually("it is asked", async || {
            let answer = ask("/guarded/a", &[]).await?;
            ensure!(answer.status == 403 && answer.body == denied, "{answer:?}");
            Ok(())
        })
        .await?;
        mesh.drained().await;
        let answer = ask("/guarded/a", &[SAYS_SO]).await?;
        ensure!(
            answer.status == 200 && answer.body == "server",
            "{answer:?}"
        );
        let answer = ask("/guarded/a", &[(SAYS_SO.0, "out")]).await?;
        ensure!(answer.status == 403, "{answer:?}");
        // What the rules do not name is nobody's business.
        let before = authorizers.asked();
        let answer = ask("/free", &[]).await?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(authorizers.asked() == before, "it was asked about /free");
    }
    // Nobody to ask is a no.
    authorizers.stop().await;
    mesh.eventually("nobody answers", async || {
        let answer = ask("/guarded/a", &[SAYS_SO]).await?;
        ensure!(answer.status == 403, "{answer:?}");
        Ok(())
    })
    .await?;
    ensure!(ask("/free", &[]).await?.status == 200);
    // A provider that does not exist denies what it should have judged.
    mesh.write("policy.yaml", &policy("nobody"))?;
    mesh.eventually("a provider that is none denies", async || {
        let answer = ask("/guarded/a", &[SAYS_SO]).await?;
        ensure!(answer.status == 403, "{answer:?}");
        Ok(())
    })
    .await?;
    ensure!(mesh.server.rejections().await?.is_empty());
    Ok(())
}
