//! Authorities that are replaced while requests are on their way.

use tests::tls::Authority;

use super::*;

/// Installs a plugged-in authority, as the files of a mounted Secret change.
fn install(folder: &Path, signing: &Authority, roots: &[&Authority]) -> Result<()> {
    fs::create_dir_all(folder)?;
    let (certificate, key) = signing.files().read()?;
    let roots: Result<Vec<String>> = roots
        .iter()
        .map(|root| Ok(root.files().read()?.0))
        .collect();
    for (name, text) in [
        ("root-cert.pem", roots?.concat()),
        ("cert-chain.pem", certificate.clone()),
        ("ca-key.pem", key),
        ("ca-cert.pem", certificate),
    ] {
        let new = folder.join(format!(".{name}"));
        fs::write(&new, text)?;
        fs::rename(new, folder.join(name))?;
    }
    Ok(())
}

/// A line of a certificate that no other one has.
fn mark(authority: &Authority) -> Result<String> {
    let (certificate, _) = authority.files().read()?;
    let line = certificate.lines().rev().nth(2);
    line.map(str::to_owned).context("a line of a certificate")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy and openssl; `cargo xtask test` runs it"]
async fn authorities_are_replaced_under_load_without_a_failed_request() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let (one, other) = (
        Authority::new(keys.path(), "one").await?,
        Authority::new(keys.path(), "other").await?,
    );
    let (first, second) = (
        one.intermediate("first").await?,
        one.intermediate("second").await?,
    );
    let third = other.intermediate("third").await?;
    let folder = keys.path().join("cacerts");
    install(&folder, &first, &[&one])?;
    let extras = Extras {
        authority: Some(folder.clone()),
        ..Extras::default()
    };
    let mesh = Mesh::start_with("8s", extras).await?;
    mesh.mode("STRICT")?;
    mesh.eventually("plaintext is refused", async || {
        ensure!(mesh.plaintext().await.is_err(), "plaintext gets an answer");
        Ok(())
    })
    .await?;
    mesh.drained().await;
    let all_have = async |file: &str, mark: &str, there: bool| {
        mesh.eventually("both proxies have it", async || {
            for certificates in &mesh.certificates {
                let text = fs::read_to_string(certificates.folder().join(file))?;
                ensure!(
                    text.contains(mark) == there,
                    "{file}: {}",
                    certificates.log()
                );
            }
            Ok(())
        })
        .await
    };
    let (chain, roots) = ("cert-chain.pem", "root-cert.pem");
    let load = mesh.through_proxy().load();
    all_have(chain, &mark(&first)?, true).await?;
    // Another intermediate of the same root.
    install(&folder, &second, &[&one])?;
    all_have(chain, &mark(&second)?, true).await?;
    // Another root: everybody trusts both first, then certificates are of the other, then the first goes.
    install(&folder, &second, &[&one, &other])?;
    all_have(roots, &mark(&other)?, true).await?;
    install(&folder, &third, &[&other, &one])?;
    all_have(chain, &mark(&third)?, true).await?;
    install(&folder, &third, &[&other])?;
    all_have(roots, &mark(&one)?, false).await?;
    sleep(Duration::from_secs(2)).await;
    let requests = load.finish().await?.len();
    ensure!(requests > 100, "{requests} requests");
    ensure!(mesh.server.rejections().await?.is_empty());
    // Both still hear of changes, from a control plane that shows a certificate of the other root.
    mesh.mode("DISABLE")?;
    mesh.eventually("plaintext gets an answer", async || {
        ensure!(mesh.plaintext().await? == "server");
        Ok(())
    })
    .await
}
