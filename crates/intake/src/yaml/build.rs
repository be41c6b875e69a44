//! Parser events to JSON values, with the lines of fields when they are asked for.

use std::{collections::BTreeMap, fmt::Write as _};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Map, Value};

use super::{
    Chunk, Lines, SyntaxError,
    scalar::{self, Scalar, Tag},
};

/// Deepest nesting; guards the stack of everything that walks a value recursively.
const MAX_DEPTH: usize = 128;

/// Most values that aliases may copy into one document; guards against exponential growth.
const MAX_ALIASED_VALUES: usize = 100_000;

/// One document as built.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) value: Value,
    pub(super) line: u32,
    pub(super) duplicates: Vec<(String, u32)>,
    pub(super) lines: Lines,
}

/// Reads all documents of a chunk.
pub(super) fn parse(chunk: Chunk<'_>, record: bool) -> Result<Vec<Built>, SyntaxError> {
    let mut built = Vec::new();
    let mut builder = Builder::new(chunk.line, record);
    let mut parser = Parser::new_from_str(chunk.text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax_error(chunk.line, &error))?;
        if matches!(event, Event::DocumentEnd) {
            let done = std::mem::replace(&mut builder, Builder::new(chunk.line, record));
            built.push(done.finish());
        } else {
            builder.event(event, span)?;
        }
    }
    Ok(built)
}

fn syntax_error(first_line: u32, error: &ScanError) -> SyntaxError {
    let marker = error.marker();
    SyntaxError {
        line: line_of(first_line, marker.line()),
        column: u32::try_from(marker.col() + 1).unwrap_or(u32::MAX),
        reason: error.info().to_owned(),
    }
}

fn line_of(first_line: u32, line: usize) -> u32 {
    first_line.saturating_add(u32::try_from(line.saturating_sub(1)).unwrap_or(u32::MAX))
}

/// A collection that is not complete yet.
enum Frame {
    List {
        items: Vec<Value>,
        anchor: usize,
        path: usize,
    },
    Mapping {
        map: Map<String, Value>,
        key: Option<Key>,
        merges: Vec<Map<String, Value>>,
        anchor: usize,
        path: usize,
    },
}

enum Key {
    Name(String),
    Merge,
}

struct Builder {
    first_line: u32,
    record: bool,
    stack: Vec<Frame>,
    /// Path of the value that comes next.
    path: String,
    root: Option<Value>,
    line: Option<u32>,
    anchors: BTreeMap<usize, Value>,
    aliased: usize,
    duplicates: Vec<(String, u32)>,
    lines: BTreeMap<String, u32>,
}

impl Builder {
    fn new(first_line: u32, record: bool) -> Self {
        Self {
            first_line,
            record,
            stack: Vec::new(),
            path: String::new(),
            root: None,
            line: None,
            anchors: BTreeMap::new(),
            aliased: 0,
            duplicates: Vec::new(),
            lines: BTreeMap::new(),
        }
    }

    fn finish(self) -> Built {
        Built {
            value: self.root.unwrap_or_default(),
            line: self.line.unwrap_or(self.first_line),
            duplicates: self.duplicates,
            lines: Lines(self.lines),
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                self.begin(span);
                let value = self.anchors.get(&anchor).cloned();
                let value =
                    value.ok_or_else(|| self.error(span, "alias of an unfinished value"))?;
                self.aliased += count(&value);
                if self.aliased > MAX_ALIASED_VALUES {
                    return Err(self.error(span, "aliases make the document too large"));
                }
                self.put(value, 0, span)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = match &tag {
                    None => Tag::Implicit,
                    Some(tag) if tag.is_yaml_core_schema() => Tag::core(&tag.suffix),
                    Some(_) => Tag::String,
                };
                let plain = style == ScalarStyle::Plain;
                let scalar =
                    scalar::resolve(&text, plain, tag).map_err(|e| self.error(span, &e))?;
                if let Some(Frame::Mapping {
                    key: key @ None,
                    map,
                    path,
                    ..
                }) = self.stack.last_mut()
                {
                    let line = line_of(self.first_line, span.start.line());
                    let name = match scalar {
                        Scalar::Merge => {
                            *key = Some(Key::Merge);
                            return Ok(());
                        }
                        Scalar::Value(Value::String(name)) => name,
                        Scalar::Value(Value::Bool(flag)) => flag.to_string(),
                        Scalar::Value(Value::Number(number)) => number.to_string(),
                        Scalar::Value(_) => return Err(self.error(span, "a key must not be null")),
                    };
                    let duplicate = map.contains_key(&name);
                    if self.record {
                        self.path.truncate(*path);
                        push_key(&mut self.path, &name);
                        self.lines.insert(self.path.clone(), line);
                    }
                    if duplicate {
                        self.duplicates.push((name.clone(), line));
                    }
                    *key = Some(Key::Name(name));
                    return Ok(());
                }
                self.begin(span);
                let value = match scalar {
                    Scalar::Value(value) => value,
                    Scalar::Merge => Value::String(text.into_owned()),
                };
                self.put(value, anchor, span)
            }
            Event::SequenceStart(anchor, _) => {
                self.open(span)?;
                let path = self.path.len();
                self.stack.push(Frame::List {
                    items: Vec::new(),
                    anchor,
                    path,
                });
                Ok(())
            }
            Event::MappingStart(anchor, _) => {
                self.open(span)?;
                let path = self.path.len();
                self.stack.push(Frame::Mapping {
                    map: Map::new(),
                    key: None,
                    merges: Vec::new(),
                    anchor,
                    path,
                });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(Frame::List { items, anchor, .. }) => {
                    self.put(Value::Array(items), anchor, span)
                }
                Some(Frame::Mapping {
                    mut map,
                    merges,
                    anchor,
                    ..
                }) => {
                    for merged in merges {
                        for (name, value) in merged {
                            map.entry(name).or_insert(value);
                        }
                    }
                    self.put(Value::Object(map), anchor, span)
                }
                None => Err(self.error(span, "unexpected end of a collection")),
            },
        }
    }

    /// Notes where a value starts.
    fn begin(&mut self, span: Span) {
        let line = line_of(self.first_line, span.start.line());
        if self.stack.is_empty() {
            self.line = Some(line);
            if self.record {
                self.lines.insert(String::new(), line);
            }
        } else if let (true, Some(Frame::List { items, path, .. })) =
            (self.record, self.stack.last())
        {
            self.path.truncate(*path);
            // Writing to a String cannot fail.
            let _ = write!(self.path, "[{}]", items.len());
            self.lines.insert(self.path.clone(), line);
        }
    }

    /// Checks that a collection may start here.
    fn open(&mut self, span: Span) -> Result<(), SyntaxError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(self.error(span, "nested too deeply"));
        }
        if let Some(Frame::Mapping { key: None, .. }) = self.stack.last() {
            return Err(self.error(span, "a key must be a scalar"));
        }
        self.begin(span);
        Ok(())
    }

    /// Hands a complete value to the collection around it.
    fn put(&mut self, value: Value, anchor: usize, span: Span) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(value),
            Some(Frame::List { items, path, .. }) => {
                items.push(value);
                self.path.truncate(*path);
            }
            Some(Frame::Mapping {
                map,
                key,
                merges,
                path,
                ..
            }) => {
                self.path.truncate(*path);
                match (key.take(), value) {
                    (Some(Key::Name(name)), value) => {
                        map.insert(name, value);
                    }
                    (Some(Key::Merge), Value::Object(merged)) => merges.push(merged),
                    (Some(Key::Merge), Value::Array(items)) => {
                        for item in items {
                            let Value::Object(merged) = item else {
                                return Err(self.error(span, "<< merges mappings only"));
                            };
                            merges.push(merged);
                        }
                    }
                    (Some(Key::Merge), _) => {
                        return Err(self.error(span, "<< merges mappings only"));
                    }
                    // An alias in the place of a key.
                    (None, Value::String(name)) => *key = Some(Key::Name(name)),
                    (None, _) => return Err(self.error(span, "a key must be a scalar")),
                }
            }
        }
        Ok(())
    }

    fn error(&self, span: Span, reason: &str) -> SyntaxError {
        SyntaxError {
            line: line_of(self.first_line, span.start.line()),
            column: u32::try_from(span.start.col() + 1).unwrap_or(u32::MAX),
            reason: reason.to_owned(),
        }
    }
}

/// Counts the values in a value.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Appends a key to a path; keys that are not plain words are quoted in brackets.
fn push_key(path: &mut String, key: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if key.is_empty() || !key.chars().all(plain) {
        // Writing to a String cannot fail.
        let _ = write!(path, "[{key:?}]");
    } else {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    }
}
