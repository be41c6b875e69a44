//! `cargo xtask descriptors`: the descriptor set of `envoy-json`.
//!
//! It joins the set that `envoy-types` was generated from (in its sources, not exported) with our own
//! `crates/envoy-json/proto`, without comments, services and option extensions. `descriptors/SOURCE`
//! says what it was made from, so that a test sees a stale one without compiling anything.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use xxhash_rust::xxh3::xxh3_64;

use crate::root;

const CRATE: &str = "crates/envoy-json";

/// Checks that the checked-in descriptor set was made from the current sources.
///
/// # Errors
/// When it was not, or a source cannot be read.
pub(crate) fn check() -> Result<()> {
    let root = root::workspace();
    let expected = source(&root)?;
    let found = fs::read_to_string(root.join(CRATE).join("descriptors/SOURCE"))
        .context("read descriptors/SOURCE")?;
    ensure!(
        found == expected,
        "descriptors are stale: run `cargo xtask descriptors`\nexpected:\n{expected}found:\n{found}"
    );
    Ok(())
}

/// Describes what a descriptor set built now would be made from: the locked `envoy-types` and a hash
/// of each of our `.proto` files.
fn source(root: &Path) -> Result<String> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?;
    let package = lock
        .split("[[package]]")
        .find(|package| package.contains("\nname = \"envoy-types\"\n"))
        .context("envoy-types is not in Cargo.lock")?;
    let field = |name: &str| -> Result<&str> {
        package
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
            .map(|value| value.trim_matches('"'))
            .with_context(|| format!("envoy-types in Cargo.lock has no {name}"))
    };
    let mut text = format!("envoy-types {} {}\n", field("version")?, field("checksum")?);
    let proto = root.join(CRATE).join("proto");
    for file in protos(&proto)? {
        let bytes = fs::read(proto.join(&file)).with_context(|| format!("read {file}"))?;
        writeln!(text, "{file} {:016x}", xxh3_64(&bytes))?;
    }
    Ok(text)
}

/// Lists our `.proto` files, relative to `proto`, sorted.
fn protos(proto: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = vec![proto.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "proto") {
                files.push(
                    path.strip_prefix(proto)?
                        .to_string_lossy()
                        .replace('\\', "/"),
                );
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Rebuilds the descriptor set; without the feature `descriptors`, by way of a build that has it.
///
/// # Errors
/// When a source is missing or does not compile.
#[cfg(not(feature = "descriptors"))]
pub(crate) fn build() -> Result<()> {
    let status = std::process::Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--package",
            "xtask",
            "--features",
            "descriptors",
        ])
        .args(["--", "descriptors"])
        .current_dir(root::workspace())
        .status()
        .context("run cargo")?;
    ensure!(
        status.success(),
        "the build with feature `descriptors` failed"
    );
    Ok(())
}

/// Rebuilds the descriptor set.
///
/// # Errors
/// When a source is missing or does not compile.
#[cfg(feature = "descriptors")]
#[expect(clippy::print_stdout, reason = "a command line tool")]
pub(crate) fn build() -> Result<()> {
    use prost::Message as _;
    use protox::file::{
        ChainFileResolver, DescriptorSetFileResolver, GoogleFileResolver, IncludeFileResolver,
    };

    let root = root::workspace();
    let proto = root.join(CRATE).join("proto");
    let types = envoy_types(&root)?.join("src/generated/types.bin");
    let bytes = fs::read(&types).with_context(|| format!("read {}", types.display()))?;
    let mut set = prost_types::FileDescriptorSet::decode(bytes.as_slice())
        .with_context(|| format!("decode {}", types.display()))?;

    let mut files = ChainFileResolver::new();
    files.add(IncludeFileResolver::new(proto.clone()));
    files.add(DescriptorSetFileResolver::new(set.clone()));
    files.add(GoogleFileResolver::new());
    let mut compiler = protox::Compiler::with_file_resolver(files);
    compiler.include_imports(false).include_source_info(false);
    for file in protos(&proto)? {
        compiler
            .open_file(proto.join(&file))
            .with_context(|| format!("compile {file}"))?;
    }
    // The one well-known type that Envoy's messages do not use, but an `Any` may hold.
    compiler.open_file("google/protobuf/field_mask.proto")?;
    set.file.extend(compiler.file_descriptor_set().file);
    for file in &mut set.file {
        file.source_code_info = None;
        file.service.clear();
    }

    let folder = root.join(CRATE).join("descriptors");
    let packed = zstd::encode_all(set.encode_to_vec().as_slice(), 19)?;
    fs::write(folder.join("envoy.binpb.zst"), &packed).context("write descriptors")?;
    fs::write(folder.join("SOURCE"), source(&root)?).context("write SOURCE")?;
    println!(
        "{} files, {} KiB packed",
        set.file.len(),
        packed.len() / 1024
    );
    Ok(())
}

/// Finds the sources of `envoy-types` in Cargo's registry.
#[cfg(feature = "descriptors")]
fn envoy_types(root: &Path) -> Result<PathBuf> {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .context("run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "envoy-types")
        .and_then(|package| package["manifest_path"].as_str())
        .context("envoy-types is not a dependency")?;
    let folder = Path::new(manifest)
        .parent()
        .context("manifest has no folder")?;
    Ok(folder.to_path_buf())
}

#[cfg(test)]
mod tests {
    #[test]
    fn checked_in_descriptors_are_current() {
        super::check().unwrap();
    }
}
