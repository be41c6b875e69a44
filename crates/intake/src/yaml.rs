//! YAML and JSON text to JSON values, as Kubernetes' tools read them.
//!
//! A text is split at `---` lines, so that one broken document does not hide its neighbours. JSON
//! documents (also several in a row) take a fast road. Plain scalars follow YAML 1.1 as
//! `sigs.k8s.io/yaml` does (see [`scalar`]); keys become strings; merge keys and anchors are expanded.
//! Line numbers of fields are found by a second pass over the document, made only when a diagnostic
//! needs them.

mod build;
mod scalar;

use std::collections::BTreeMap;

use serde_json::Value;

/// One document of a text.
#[derive(Debug)]
pub(crate) struct Document<'t> {
    /// The content.
    pub(crate) value: Value,
    /// The first line of the content, from 1.
    pub(crate) line: u32,
    /// Keys that occur twice in one mapping; the last one counts.
    pub(crate) duplicates: Vec<(String, u32)>,
    chunk: Chunk<'t>,
    index: usize,
}

impl Document<'_> {
    /// A document that was never a text; it has no lines.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn of_value(value: Value) -> Self {
        Self {
            value,
            line: 0,
            duplicates: Vec::new(),
            chunk: Chunk { text: "", line: 0 },
            index: 0,
        }
    }

    /// Finds the lines of all fields, by reading the document once more.
    pub(crate) fn lines(&self) -> Lines {
        build::parse(self.chunk, true)
            .ok()
            .and_then(|documents| documents.into_iter().nth(self.index))
            .map_or_else(|| Lines::at(self.line), |built| built.lines)
    }
}

/// Why a document is neither YAML nor JSON.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct SyntaxError {
    /// Line in the text, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// What is wrong, in words.
    pub reason: String,
}

/// Lines of the fields of one document, by path (`spec.http[0].timeout`).
#[derive(Clone, Default, Debug)]
pub(crate) struct Lines(BTreeMap<String, u32>);

impl Lines {
    fn at(line: u32) -> Self {
        Self(BTreeMap::from([(String::new(), line)]))
    }

    /// Returns the line of a field, or of its nearest ancestor that the document has.
    pub(crate) fn find(&self, path: &str) -> Option<u32> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            if path.is_empty() {
                return None;
            }
            let cut = if path.ends_with("\"]") {
                path.rfind("[\"")
            } else if path.ends_with(']') {
                path.rfind('[')
            } else {
                path.rfind(['.', ']']).map(|at| {
                    if path.as_bytes()[at] == b']' {
                        at + 1
                    } else {
                        at
                    }
                })
            };
            path = &path[..cut.unwrap_or(0)];
        }
    }
}

/// Part of a text between two separators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'t> {
    text: &'t str,
    /// Line of the chunk's first character, from 1.
    line: u32,
}

/// Finds the line of a field, or of the deepest part of its path that is there, in a text of one
/// document. `path` is as in findings, such as `spec.http[0].timeout`.
pub fn line_of(text: &str, path: &str) -> Option<u32> {
    let document = documents(text).into_iter().next()?.ok()?;
    document.lines().find(path)
}

/// Finds the line of a field of an object, or of the deepest part of its path that is there. The
/// object starts at `line` (see [`model::config::Origin`]): it is a document of the text, or an item
/// of a list in one.
pub fn line_in(text: &str, line: u32, path: &str) -> Option<u32> {
    let documents = documents(text).into_iter().flatten();
    let document = documents
        .take_while(|document| document.line <= line)
        .last()?;
    let lines = document.lines();
    if document.line == line {
        return lines.find(path);
    }
    let item = |(path, at): &(&String, &u32)| **at == line && path.ends_with(']');
    let (item, _) = lines
        .0
        .iter()
        .filter(item)
        .min_by_key(|(path, _)| path.len())?;
    lines.find(&format!("{item}.{path}"))
}

/// Reads every document of a text that is no list of objects, such as a node or a mesh config; empty
/// documents are left out.
///
/// # Errors
/// The first document that is neither YAML nor JSON.
pub fn values(text: &str) -> Result<Vec<Value>, SyntaxError> {
    documents(text)
        .into_iter()
        .map(|document| document.map(|document| document.value))
        .collect()
}

/// Reads every document of `text`; empty documents are left out.
pub(crate) fn documents(text: &str) -> Vec<Result<Document<'_>, SyntaxError>> {
    chunks(text)
        .into_iter()
        .flat_map(Chunk::documents)
        .collect()
}

impl<'t> Chunk<'t> {
    /// Reads the documents of this part of a text: as a rule one; several JSON values in a row.
    pub(crate) fn documents(self) -> Vec<Result<Document<'t>, SyntaxError>> {
        let mut documents: Vec<Result<Document<'t>, SyntaxError>> = Vec::with_capacity(1);
        if let Some(values) = json(self) {
            documents.extend(
                values
                    .into_iter()
                    .enumerate()
                    .map(|(index, (value, line))| {
                        Ok(Document {
                            value,
                            line,
                            duplicates: Vec::new(),
                            chunk: self,
                            index,
                        })
                    }),
            );
        } else {
            match build::parse(self, false) {
                Ok(built) => {
                    documents.extend(built.into_iter().enumerate().map(|(index, built)| {
                        let build::Built {
                            value,
                            line,
                            duplicates,
                            ..
                        } = built;
                        Ok(Document {
                            value,
                            line,
                            duplicates,
                            chunk: self,
                            index,
                        })
                    }));
                }
                Err(error) => documents.push(Err(error)),
            }
        }
        documents.retain(|d| {
            !matches!(
                d,
                Ok(Document {
                    value: Value::Null,
                    ..
                })
            )
        });
        documents
    }
}

/// Splits a text at `---` lines; such a line belongs to the document that it opens.
pub(crate) fn chunks(text: &str) -> Vec<Chunk<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut has_content) = (0, 1, false);
    let mut at = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let opens = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if opens && has_content {
            chunks.push(Chunk {
                text: &text[start..at],
                line: start_line,
            });
            (start, start_line) = (at, number);
        }
        // Comments and directives belong to the document after them.
        has_content |=
            opens || !matches!(line.trim_start().bytes().next(), None | Some(b'#' | b'%'));
        at += line.len();
    }
    if has_content {
        chunks.push(Chunk {
            text: &text[start..],
            line: start_line,
        });
    }
    chunks
}

/// Reads a chunk that holds nothing but JSON values; `None` when it is something else.
fn json(chunk: Chunk<'_>) -> Option<Vec<(Value, u32)>> {
    let body = chunk.text.strip_prefix("---").unwrap_or(chunk.text);
    if !body.trim_start().starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    let mut found = Vec::new();
    let (mut counted, mut line) = (0, chunk.line);
    loop {
        let offset = values.byte_offset();
        let start = offset
            + body[offset..]
                .find(|c: char| !c.is_ascii_whitespace())
                .unwrap_or(0);
        match values.next() {
            None => return Some(found),
            Some(Err(_)) => return None,
            Some(Ok(value)) => {
                let breaks = body[counted..start].bytes().filter(|b| *b == b'\n').count();
                line += u32::try_from(breaks).unwrap_or(u32::MAX);
                counted = start;
                found.push((value, line));
            }
        }
    }
}

#[cfg(test)]
mod tests;
