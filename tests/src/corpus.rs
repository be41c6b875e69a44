//! Where the conformance corpus is: beside the repository, or packed inside it.
//!
//! `../shared/conformance` is used when it is there. Otherwise `tests/conformance/corpus.tar.zst` is
//! unpacked under `target/`, once per content.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::Xxh3Default;

const PACK: &str = "tests/conformance/corpus.tar.zst";
const HASH: &str = "tests/conformance/corpus.hash";

/// Returns the root of the workspace.
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Returns the folder of the corpus, unpacking it if need be.
///
/// # Errors
/// When there is neither the folder beside the repository nor a readable pack.
pub fn root() -> Result<PathBuf> {
    match shared() {
        Some(folder) => Ok(folder),
        None => unpack(),
    }
}

/// Returns the corpus beside the repository, if it is there.
pub fn shared() -> Option<PathBuf> {
    let folder = workspace().join("../shared/conformance");
    folder.join("cases").is_dir().then_some(folder)
}

/// Packs the corpus beside the repository; the same corpus gives the same bytes.
///
/// # Errors
/// When there is none, or files cannot be read or written.
pub fn pack() -> Result<()> {
    let Some(folder) = shared() else {
        bail!("no ../shared/conformance to pack")
    };
    let mut archive = tar::Builder::new(Vec::new());
    for file in files(&folder)? {
        let bytes = fs::read(folder.join(&file)).with_context(|| format!("read {file}"))?;
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, &file, bytes.as_slice())?;
    }
    let tar = archive.into_inner()?;
    let mut encoder = zstd::Encoder::new(Vec::new(), 19)?;
    // Files repeat each other over long distances.
    encoder.long_distance_matching(true)?;
    encoder.window_log(26)?;
    std::io::copy(&mut tar.as_slice(), &mut encoder)?;
    fs::write(workspace().join(PACK), encoder.finish()?).context("write the pack")?;
    fs::write(workspace().join(HASH), hash(&folder)? + "\n").context("write its hash")?;
    Ok(())
}

/// Checks that the pack holds what the folder beside the repository holds; true without such a folder.
///
/// # Errors
/// When files cannot be read.
pub fn pack_is_current() -> Result<bool> {
    let Some(folder) = shared() else {
        return Ok(true);
    };
    let packed = fs::read_to_string(workspace().join(HASH)).unwrap_or_default();
    Ok(packed.trim() == hash(&folder)? && workspace().join(PACK).is_file())
}

fn unpack() -> Result<PathBuf> {
    let hash = fs::read_to_string(workspace().join(HASH)).context("read the hash of the pack")?;
    let parent = workspace().join("target/conformance");
    let folder = parent.join(hash.trim());
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&parent).context("create target/conformance")?;
    let temporary = tempfile::tempdir_in(&parent).context("create a temporary folder")?;
    let pack = fs::File::open(workspace().join(PACK)).context("open the packed corpus")?;
    let mut decoder = zstd::Decoder::new(pack)?;
    decoder.window_log_max(26)?;
    let content = temporary.path().join("corpus");
    tar::Archive::new(decoder)
        .unpack(&content)
        .context("unpack the corpus")?;
    // Another process may have been faster: then its folder stays.
    if let Err(error) = fs::rename(&content, &folder)
        && !folder.is_dir()
    {
        return Err(error).context("move the unpacked corpus into place");
    }
    Ok(folder)
}

/// Hashes the names and contents of all files in `folder`.
fn hash(folder: &Path) -> Result<String> {
    let mut hash = Xxh3Default::new();
    for file in files(folder)? {
        let bytes = fs::read(folder.join(&file)).with_context(|| format!("read {file}"))?;
        hash.update(file.as_bytes());
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// Lists all files in `folder`, relative to it, sorted.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("list {}", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(
                    path.strip_prefix(folder)?
                        .to_string_lossy()
                        .replace('\\', "/"),
                );
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pack_unpacks_to_what_its_hash_says() {
        let folder = unpack().unwrap();
        let recorded = fs::read_to_string(workspace().join(HASH)).unwrap();
        assert_eq!(hash(&folder).unwrap(), recorded.trim());
        assert_eq!(unpack().unwrap(), folder);
    }
}
