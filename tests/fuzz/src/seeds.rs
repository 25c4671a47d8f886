//! Guest data for cloud-init: how it is merged, and the image that holds it.
//!
//! Invariant: merged user data are what a second merge, written down here, makes of the same maps;
//! merging the result with nothing changes nothing. A refusal repeats nothing of a source. An image
//! holds each file byte for byte under its name, for a second reader of ISO 9660.
//! Failure: a panic.

use std::collections::BTreeMap;

use cloudinit_image::{File, NO_CLOUD, image};
use podspec::{Content, GuestData, GuestName, Source, SourceKind};
use serde_json::{Map, Value};

const GUEST: GuestName<'_> = GuestName {
    instance_id: "web.default",
    host_name: "web",
};
const USER_DATA: &str = "vmlet.dev/cloud-init-user-data";
const META_DATA: &str = "vmlet.dev/cloud-init-meta-data";
const SOURCE: &str = "vmlet.dev/cloud-init-user-data-source";
const HEADER: &str = "#cloud-config\n";

/// The user data that a pod and a source make.
fn user_data(annotations: &[(&str, &str)], content: Content) -> Result<Option<String>, String> {
    let pairs = annotations
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let data = GuestData::from_pod(&pairs.collect()).map_err(|e| e.reason)?;
    let Some(data) = data else { return Ok(None) };
    let source = Source::new(SourceKind::Secret, "seed").map_err(str::to_owned)?;
    let files = data.assemble(&GUEST, &[(source, content)].into());
    let files = files.map_err(|error| error.to_string())?;
    Ok(Some(String::from_utf8_lossy(&files.user_data).into_owned()))
}

/// What a text means as a map, by way of another setting.
fn map_of(text: &str) -> Option<Map<String, Value>> {
    if text.contains("instance-id") || text.contains("local-hostname") {
        // They would hide what is generated.
        return None;
    }
    let annotations = [(META_DATA.to_owned(), text.to_owned())].into();
    let Some(data) = GuestData::from_pod(&annotations).ok()? else {
        return Some(Map::new());
    };
    let files = data.assemble(&GUEST, &BTreeMap::new()).ok()?;
    let mut map: Map<String, Value> = serde_json::from_slice(&files.meta_data).ok()?;
    for generated in ["instance-id", "local-hostname"] {
        map.remove(generated);
    }
    Some(map)
}

/// Maps recurse, lists are joined, anything else is what comes later.
fn merged(base: Value, later: Value) -> Value {
    match (base, later) {
        (Value::Object(mut base), Value::Object(later)) => {
            for (key, value) in later {
                let both = match base.remove(&key) {
                    Some(old) => merged(old, value),
                    None => value,
                };
                base.insert(key, both);
            }
            Value::Object(base)
        }
        (Value::Array(base), Value::Array(later)) => base.into_iter().chain(later).collect(),
        (_, later) => later,
    }
}

/// The pod's own user data, a line `---`, then a source: after each line `KEY:`, the value of a
/// key.
///
/// # Panics
///
/// When a merge differs, or a refusal says too much.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn guest_data(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (own, source) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let source: BTreeMap<String, Vec<u8>> = source
        .split("\n\n")
        .filter_map(|part| part.split_once(":\n"))
        .filter(|(key, _)| {
            key.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        })
        .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
        .collect();
    let settings = [(USER_DATA, own), (SOURCE, "secret/seed")];
    let made = match user_data(&settings, Content(source.clone())) {
        Ok(made) => made.expect("a setting was given"),
        Err(reason) => return hides(&reason, &source),
    };
    let body = made
        .strip_prefix(HEADER)
        .expect("the line that cloud-init looks for");
    let made: Value = serde_json::from_str(body).expect("JSON");
    // What YAML 1.1 calls printable, less what it takes for an end of a line.
    let is_plain = |c: char| {
        matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
            && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
    };
    assert!(body.chars().all(is_plain), "{body:?}");
    // Values are read by way of a map with one key; blanks keep the text's own columns.
    let mut base = Map::new();
    for (key, value) in &source {
        let value = String::from_utf8_lossy(value);
        if let Some(map) = map_of(&value) {
            base.insert(key.clone(), Value::Object(map));
        }
    }
    if let Some(own) = map_of(own)
        && base.len() == source.len()
        && source.values().all(|value| is_map(value))
    {
        assert_eq!(made, merged(Value::Object(base), Value::Object(own)));
    }
    // The result is YAML, too, and stands for itself.
    let again = user_data(
        &[(USER_DATA, body), (SOURCE, "secret/seed")],
        Content::default(),
    );
    if body.len() < 256 << 10 {
        let again = again.expect("a map").expect("user data");
        let again: Value = serde_json::from_str(again.trim_start_matches(HEADER)).expect("JSON");
        assert_eq!(again, made);
    }
}

/// Whether a text is a map that is not empty: nothing at all means another thing as a value.
fn is_map(value: &[u8]) -> bool {
    let value = String::from_utf8_lossy(value);
    map_of(&value).is_some_and(|map| !map.is_empty())
}

/// A refusal has no word of a source's values.
fn hides(reason: &str, source: &BTreeMap<String, Vec<u8>>) {
    for value in source.values() {
        let value = String::from_utf8_lossy(value);
        for word in value.split_whitespace().filter(|word| word.len() > 8) {
            let is_key = source.keys().any(|key| key.contains(word));
            assert!(!reason.contains(word) || is_key, "{reason}");
        }
    }
}

/// Contents of files, one after the other: each begins with its length in two bytes.
///
/// # Panics
///
/// When a second reader finds something else.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn seed_images(input: &[u8]) {
    const NAMES: [&str; 5] = [
        "meta-data",
        "user-data",
        "network-config",
        "vendor-data",
        "vmlet-guest",
    ];
    let mut rest = input;
    let mut files = Vec::new();
    for name in NAMES {
        let Some((length, after)) = rest.split_first_chunk::<2>() else {
            break;
        };
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (content, after) = after.split_at(length);
        let content = content.to_vec();
        files.push(File {
            name: name.to_owned(),
            content,
        });
        rest = after;
    }
    let expected: BTreeMap<_, _> = files
        .iter()
        .map(|file| (file.name.clone(), file.content.clone()))
        .collect();
    let iso = image(NO_CLOUD, files).expect("an image");
    assert_eq!(iso.len() % 2048, 0);
    assert_eq!(read_back(&iso).expect("a volume"), expected);
}

/// The files in the top directory of a volume for cloud-init (ECMA-119, and the alternate names of
/// Rock Ridge); `None` when it is no such volume.
fn read_back(iso: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    let volume = iso.get(16 * 2048..17 * 2048)?;
    if volume.get(..6)? != b"\x01CD001" || volume.get(40..72)?.trim_ascii() != NO_CLOUD.as_bytes() {
        return None;
    }
    let (start, length) = extent(volume.get(156..)?)?;
    let mut directory = iso.get(start..start.checked_add(length)?)?;
    let mut found = BTreeMap::new();
    while let Some(size) = directory.first().copied().map(usize::from) {
        if size == 0 {
            // Records do not cross blocks.
            let used = length - directory.len();
            directory = directory
                .get(used.next_multiple_of(2048) - used..)
                .unwrap_or_default();
            if used.is_multiple_of(2048) {
                break;
            }
            continue;
        }
        let record = directory.get(..size)?;
        directory = directory.get(size..)?;
        let id = usize::from(*record.get(32)?);
        if id == 1 && *record.get(33)? < 2 {
            continue;
        }
        let name = alternate_name(record.get((33 + id).next_multiple_of(2)..)?)?;
        let (start, length) = extent(record)?;
        let content = iso.get(start..start.checked_add(length)?)?;
        found.insert(name, content.to_vec());
    }
    Some(found)
}

/// Offset and length in bytes of what a record is about.
fn extent(record: &[u8]) -> Option<(usize, usize)> {
    let number = |at: usize| -> Option<usize> {
        let bytes = record.get(at..)?.first_chunk::<4>()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    Some((number(2)?.checked_mul(2048)?, number(10)?))
}

fn alternate_name(mut fields: &[u8]) -> Option<String> {
    let mut name = Vec::new();
    while let [a, b, length, _, ..] = fields {
        let field = fields
            .get(..usize::from(*length))
            .filter(|field| field.len() >= 4)?;
        if [*a, *b] == *b"NM" {
            name.extend(field.get(5..)?);
        }
        fields = &fields[field.len()..];
    }
    String::from_utf8(name).ok()
}
