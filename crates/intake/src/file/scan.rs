//! Which files there are, and whether they have changed.

use std::{collections::BTreeMap, fs::Metadata, io, path::Path, time::SystemTime};

use super::FileId;

/// Deepest nesting of folders; guards against symbolic links in a circle.
const MAX_DEPTH: usize = 32;

/// What tells two versions of a file apart without reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            inode,
        }
    }
}

/// Lists the files under a given path: itself, or everything in a folder that looks like YAML or JSON.
///
/// Hidden files and folders are left out: mounted ConfigMaps keep their older versions in such.
pub(super) fn scan(root: usize, path: &Path) -> io::Result<BTreeMap<FileId, Stamp>> {
    let metadata = std::fs::metadata(path)?;
    let mut found = BTreeMap::new();
    if metadata.is_dir() {
        folder(root, path, 0, &mut found)?;
    } else {
        found.insert(
            FileId {
                root,
                path: path.to_owned(),
            },
            Stamp::of(&metadata),
        );
    }
    Ok(found)
}

fn folder(
    root: usize,
    path: &Path,
    depth: usize,
    found: &mut BTreeMap<FileId, Stamp>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        // What goes away while it is listed is gone.
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            if depth < MAX_DEPTH {
                folder(root, &path, depth + 1, found)?;
            }
        } else if metadata.is_file() && is_config(&path) {
            let stamp = Stamp::of(&metadata);
            found.insert(FileId { root, path }, stamp);
        }
    }
    Ok(())
}

fn is_config(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
}

/// Tells whether a given path was a folder when it was last listed.
pub(super) fn was_folder(root: usize, path: &Path, stamps: &BTreeMap<FileId, Stamp>) -> bool {
    !stamps.contains_key(&FileId {
        root,
        path: path.to_owned(),
    })
}
