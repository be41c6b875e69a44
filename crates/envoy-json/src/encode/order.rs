//! Puts the bytes of one message in order.

use std::ops::Range;

use super::plan::{Key, Plan, PlanId, Plans, Step};

/// Messages nested deeper are left as they are (prost decodes no deeper ones either).
const MAX_DEPTH: u32 = 100;

/// The bytes are no message; what was put in order up to there stays so.
struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// Puts the message in `bytes` in order.
pub(super) fn canonicalize(plans: &Plans, id: PlanId, bytes: &mut [u8]) {
    let _malformed = message(plans, plans.get(id), bytes, 0);
}

fn message(plans: &Plans, plan: &Plan, bytes: &mut [u8], depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    if plan.any {
        return any(plans, bytes, depth);
    }
    if walk(plans, plan, bytes, depth)? == FieldOrder::Descending {
        sort_fields(bytes)?;
        // Entries of one map are now side by side, if they were not before.
        walk(plans, plan, bytes, depth)?;
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum FieldOrder {
    Ascending,
    Descending,
}

/// Goes through the fields once: orders nested messages and runs of map entries, and finds out whether
/// the fields themselves are in order.
fn walk(plans: &Plans, plan: &Plan, bytes: &mut [u8], depth: u32) -> Result<FieldOrder> {
    let mut order = FieldOrder::Ascending;
    let mut last = 0;
    let mut entries = Entries::default();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let field = field(bytes, &mut at)?;
        if field.number != last {
            entries.finish(bytes);
            if field.number < last {
                order = FieldOrder::Descending;
            }
            last = field.number;
        }
        let Some(body) = field.body else { continue };
        match plan.step(field.number) {
            Step::Skip => {}
            Step::Message(id) => {
                message(plans, plans.get(id), &mut bytes[body], depth + 1)?;
            }
            Step::Map(key, value) => {
                let entry = &mut bytes[body.clone()];
                let parts = parts(entry)?;
                if let (Some(id), Some(value)) = (value, parts.value) {
                    message(plans, plans.get(id), &mut entry[value], depth + 1)?;
                }
                let key_at = parts.key.map_or(body.start..body.start, |key| {
                    body.start + key.start..body.start + key.end
                });
                entries.push(bytes, key, key_at, start..at);
            }
        }
    }
    entries.finish(bytes);
    Ok(order)
}

/// Orders the packed message, if its type is known.
fn any(plans: &Plans, bytes: &mut [u8], depth: u32) -> Result<()> {
    let parts = parts(bytes)?;
    let (Some(url), Some(value)) = (parts.key, parts.value) else {
        return Ok(());
    };
    let url = &bytes[url];
    let name = url
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(url, |slash| &url[slash + 1..]);
    if let Some(id) = plans.find(name) {
        message(plans, plans.get(id), &mut bytes[value], depth + 1)?;
    }
    Ok(())
}

/// A run of entries of one map.
#[derive(Default)]
struct Entries {
    key: Option<Key>,
    run: Range<usize>,
    last: Range<usize>,
    sorted: bool,
}

impl Entries {
    fn push(&mut self, bytes: &[u8], key: Key, key_at: Range<usize>, entry: Range<usize>) {
        if self.key.is_none() {
            *self = Self {
                key: Some(key),
                run: entry,
                last: key_at,
                sorted: true,
            };
            return;
        }
        let previous = &bytes[self.last.clone()];
        self.sorted = self.sorted && !is_less(key, &bytes[key_at.clone()], previous);
        self.run.end = entry.end;
        self.last = key_at;
    }

    /// Ends the run, and sorts it if it was not sorted.
    #[inline]
    fn finish(&mut self, bytes: &mut [u8]) {
        if let Some(key) = self.key
            && !self.sorted
        {
            // Only bytes that are no message cannot be sorted.
            let _malformed = sort_entries(key, &mut bytes[self.run.clone()]);
        }
        self.key = None;
    }
}

#[cold]
fn sort_entries(key: Key, run: &mut [u8]) -> Result<()> {
    let copy = run.to_vec();
    let mut entries: Vec<(&[u8], &[u8])> = Vec::new();
    let mut at = 0;
    while at < copy.len() {
        let start = at;
        let body = field(&copy, &mut at)?.body.ok_or(Malformed)?;
        let entry = &copy[body];
        let key = parts(entry)?.key.map_or(&[][..], |key| &entry[key]);
        entries.push((key, &copy[start..at]));
    }
    match key {
        Key::Text => entries.sort_by(|a, b| a.0.cmp(b.0)),
        _ => entries.sort_by_key(|entry| number(key, entry.0)),
    }
    write_back(run, entries.into_iter().map(|entry| entry.1));
    Ok(())
}

fn sort_fields(bytes: &mut [u8]) -> Result<()> {
    let copy = bytes.to_vec();
    let mut fields: Vec<(u32, &[u8])> = Vec::new();
    let mut at = 0;
    while at < copy.len() {
        let start = at;
        let number = field(&copy, &mut at)?.number;
        fields.push((number, &copy[start..at]));
    }
    fields.sort_by_key(|field| field.0);
    write_back(bytes, fields.into_iter().map(|field| field.1));
    Ok(())
}

/// Writes pieces, which together are as long as `bytes`, one after the other.
fn write_back<'a>(bytes: &mut [u8], pieces: impl Iterator<Item = &'a [u8]>) {
    let mut at = 0;
    for piece in pieces {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
}

fn is_less(key: Key, a: &[u8], b: &[u8]) -> bool {
    match key {
        Key::Text => a < b,
        _ => number(key, a) < number(key, b),
    }
}

/// Reads a key that is a number; what is absent is 0.
fn number(key: Key, bytes: &[u8]) -> i128 {
    let fixed = || {
        bytes
            .iter()
            .rev()
            .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let raw = || varint(bytes, &mut 0).unwrap_or_default();
    match key {
        Key::Text => 0,
        Key::Unsigned => i128::from(raw()),
        Key::Signed => i128::from(raw().cast_signed()),
        Key::ZigZag => {
            let raw = raw();
            let half = i128::from(raw >> 1);
            if raw & 1 == 0 { half } else { -half - 1 }
        }
        Key::Fixed => i128::from(fixed()),
        Key::SignedFixed if bytes.len() == 4 => {
            i128::from(u32::try_from(fixed()).unwrap_or_default().cast_signed())
        }
        Key::SignedFixed => i128::from(fixed().cast_signed()),
    }
}

/// One field: its number, and where its content is if that has a length.
struct Field {
    number: u32,
    body: Option<Range<usize>>,
}

/// Reads the field at `at`, and moves `at` behind it.
#[inline]
fn field(bytes: &[u8], at: &mut usize) -> Result<Field> {
    let tag = varint(bytes, at)?;
    let number = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
    let length = match tag & 7 {
        0 => {
            varint(bytes, at)?;
            return Ok(Field { number, body: None });
        }
        1 => 8,
        2 => usize::try_from(varint(bytes, at)?).map_err(|_| Malformed)?,
        5 => 4,
        _ => return Err(Malformed),
    };
    let start = *at;
    let end = start
        .checked_add(length)
        .filter(|end| *end <= bytes.len())
        .ok_or(Malformed)?;
    *at = end;
    Ok(Field {
        number,
        body: (tag & 7 == 2).then_some(start..end),
    })
}

/// Where the content of fields 1 and 2 is: of a map entry key and value, of an `Any` type URL and value.
struct Parts {
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
}

fn parts(bytes: &[u8]) -> Result<Parts> {
    let mut parts = Parts {
        key: None,
        value: None,
    };
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let field = field(bytes, &mut at)?;
        match field.number {
            // The key of a map may be a number: then its content follows the one byte of the tag.
            1 => parts.key = Some(field.body.unwrap_or(start + 1..at)),
            2 => parts.value = field.body,
            _ => {}
        }
    }
    Ok(parts)
}

#[inline]
fn varint(bytes: &[u8], at: &mut usize) -> Result<u64> {
    let first = *bytes.get(*at).ok_or(Malformed)?;
    *at += 1;
    if first < 0x80 {
        return Ok(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or(Malformed)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}
