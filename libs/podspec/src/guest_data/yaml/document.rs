//! One document, from the events of a parser of YAML: its shape, or its value.
//!
//! Invariant: a value means what PyYAML's safe loader makes of it: what `<<` names comes below a map's
//! own keys, and the last one of equal keys counts. Size and depth are bounded, also those of aliases.
//! Failure: a [`Flaw`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{
    Event, Marker, Parser, ScalarStyle, Span, StructureStyle, Tag, options,
};

use super::MAX_REPLAYED;
use super::refusal::{Flaw, Refusal};
use super::scalar::{Key, Kind, Node};

/// Most events of a text: values, and ends of lists and maps.
const MAX_EVENTS: usize = 250_000;
/// Most bytes of the scalars that the aliases of a text may refer to, together.
const MAX_REPLAYED_BYTES: usize = 16 << 20;
/// Most lists and maps in each other, as those of the other readings.
const MAX_DEPTH: usize = 64;
/// Ends of lines in YAML 1.1, but not to the parser.
const ENDS_OF_LINES: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];
/// What the tags of YAML begin with.
const TAGS: &str = "tag:yaml.org,2002:";

/// The value that a text is to cloud-init.
pub(super) fn read(text: &str) -> Result<Value, Flaw> {
    let document = Document::parse(text)?;
    if let Some(flaw) = document.unmerged {
        return Err(flaw);
    }
    let mut reader = Reader {
        document: &document,
        at: 0,
        is_replay: false,
        values_left: MAX_REPLAYED,
        bytes_left: MAX_REPLAYED_BYTES,
    };
    if document.events.is_empty() {
        return Ok(Value::Null);
    }
    reader.value(0)
}

/// What a document is, whatever its values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// No document, null, or a map without keys.
    Empty,
    Map,
    Other,
}

/// What a text is. Scalars and tags are not checked.
pub(super) fn shape(text: &str) -> Result<Shape, Flaw> {
    let document = Document::parse(text)?;
    document.check_aliases()?;
    let mut events = document.events.iter().map(|(event, _)| event);
    Ok(match events.next() {
        None => Shape::Empty,
        Some(Event::MappingStart(..)) => match events.next() {
            Some(Event::MappingEnd) => Shape::Empty,
            _ => Shape::Map,
        },
        Some(Event::Scalar(text, style, _, tag)) => match kind(text, *style, tag.as_deref()) {
            Ok(Kind::Null) => Shape::Empty,
            _ => Shape::Other,
        },
        Some(_) => Shape::Other,
    })
}

/// The events of the only document of a text.
struct Document<'t> {
    events: Vec<(Event<'t>, Marker)>,
    /// The event of each anchor.
    anchors: HashMap<usize, usize>,
    /// What keeps it from being merged, whatever its values are: PyYAML refuses it or reads it otherwise.
    unmerged: Option<Flaw>,
}

impl<'t> Document<'t> {
    fn parse(text: &'t str) -> Result<Self, Flaw> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut all = Self {
            events: Vec::new(),
            anchors: HashMap::new(),
            unmerged: line_end(text),
        };
        let mut has_document = false;
        let mut open_in_brackets = 0_usize;
        let mut names = HashSet::new();
        let options = options! { emit_comments: false, emit_anchor_events: true };
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|e| Flaw::at(e.marker(), Refusal::NoYaml))?;
            let flaw = |refusal| Flaw::at(&span.start, refusal);
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
                Event::DocumentStart(..) if has_document => return Err(flaw(Refusal::Unread)),
                Event::DocumentStart(..) => {
                    has_document = true;
                    continue;
                }
                Event::Anchor(_, name) => {
                    if !is_name(&name) || !names.insert(name) {
                        all.unmerged.get_or_insert(flaw(Refusal::Unread));
                    }
                    continue;
                }
                Event::SequenceStart(style, ..) | Event::MappingStart(style, ..)
                    if open_in_brackets > 0 || style == StructureStyle::Flow =>
                {
                    open_in_brackets += 1;
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    open_in_brackets = open_in_brackets.saturating_sub(1);
                }
                Event::Scalar(ref text, ScalarStyle::Plain, ..)
                    if open_in_brackets > 0 && text.starts_with('?') =>
                {
                    let what = Refusal::NoJson("without quotes this begins a key");
                    all.unmerged.get_or_insert(flaw(what));
                }
                _ => {}
            }
            if all.events.len() == MAX_EVENTS {
                return Err(flaw(Refusal::TooLarge));
            }
            if let Some(anchor) = event.anchor_id() {
                all.anchors.insert(anchor, all.events.len());
            }
            all.events
                .push((with_its_end(event, &span, text), span.start));
        }
        Ok(all)
    }

    /// Bounds what aliases repeat, also by others, without repeating it.
    fn check_aliases(&self) -> Result<(), Flaw> {
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        let mut open: Vec<Part> = Vec::new();
        let mut left = MAX_REPLAYED;
        for (event, place) in &self.events {
            let too_large = || Flaw::at(place, Refusal::TooLarge);
            let mut part = Part {
                anchor: event.anchor_id(),
                size: 1,
            };
            match event {
                Event::SequenceStart(..) | Event::MappingStart(..) => {
                    open.push(part);
                    continue;
                }
                Event::SequenceEnd | Event::MappingEnd => part = open.pop().unwrap_or(part),
                Event::Alias(anchor) => {
                    // An alias in what it refers to has no end.
                    part.size = sizes.get(anchor).copied().ok_or_else(too_large)?;
                    left = left.checked_sub(part.size).ok_or_else(too_large)?;
                }
                _ => {}
            }
            if let Some(anchor) = part.anchor {
                sizes.insert(anchor, part.size);
            }
            if let Some(outer) = open.last_mut() {
                outer.size += part.size;
            }
        }
        Ok(())
    }
}

/// A node with all that is in it.
struct Part {
    anchor: Option<usize>,
    size: usize,
}

/// Whether PyYAML takes all of the text for the name of an anchor.
fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The parser ends the last line of a block, also where the text does not.
fn with_its_end<'t>(event: Event<'t>, span: &Span, text: &str) -> Event<'t> {
    match event {
        Event::Scalar(block, style @ (ScalarStyle::Literal | ScalarStyle::Folded), anchor, tag)
            if is_open_end(span, text) =>
        {
            let block = block.strip_suffix('\n').unwrap_or(&block).to_owned();
            Event::Scalar(block.into(), style, anchor, tag)
        }
        event => event,
    }
}

/// Whether the text stops in a line of a node.
fn is_open_end(span: &Span, text: &str) -> bool {
    let bytes = span.byte_range();
    bytes.is_some_and(|bytes| bytes.end == text.len())
        && !text.ends_with(['\n', '\r'])
        && text
            .lines()
            .next_back()
            .is_some_and(|line| !line.trim().is_empty())
}

/// Makes values of events. An alias is read as the events of its anchor once more.
struct Reader<'d> {
    document: &'d Document<'d>,
    at: usize,
    is_replay: bool,
    values_left: usize,
    bytes_left: usize,
}

impl<'d> Reader<'d> {
    fn value(&mut self, depth: usize) -> Result<Value, Flaw> {
        let place = self.place();
        let node = self.node(depth)?;
        node.into_value()
            .map_err(|refusal| Flaw::at(&place, refusal))
    }

    fn node(&mut self, depth: usize) -> Result<Node, Flaw> {
        let place = self.place();
        let flaw = |refusal| Flaw::at(&place, refusal);
        let document = self.document;
        let Some((event, _)) = document.events.get(self.at) else {
            return Err(flaw(Refusal::NoYaml));
        };
        self.at += 1;
        if depth > MAX_DEPTH {
            return Err(flaw(Refusal::TooDeep));
        }
        self.count(event).map_err(flaw)?;
        match event {
            Event::Alias(anchor) => {
                let target = document.anchors.get(anchor).copied();
                self.replay(target.ok_or_else(|| flaw(Refusal::NoYaml))?, depth)
            }
            Event::Scalar(text, style, _, tag) => {
                let kind = kind(text, *style, tag.as_deref()).map_err(flaw)?;
                kind.node(text).map_err(flaw)
            }
            Event::SequenceStart(_, _, tag) => {
                check_tag(tag.as_deref(), "seq").map_err(flaw)?;
                self.list(depth).map(Node::Value)
            }
            Event::MappingStart(_, _, tag) => {
                check_tag(tag.as_deref(), "map").map_err(flaw)?;
                self.map(depth).map(Node::Value)
            }
            _ => Err(flaw(Refusal::NoYaml)),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Flaw> {
        let mut list = Vec::new();
        while !self.take(&Event::SequenceEnd) {
            list.push(self.value(depth + 1)?);
        }
        Ok(list.into())
    }

    fn map(&mut self, depth: usize) -> Result<Value, Flaw> {
        let mut map = Map::new();
        let mut own = Map::new();
        while !self.take(&Event::MappingEnd) {
            let place = self.place();
            let key = self.node(depth + 1)?.into_key();
            match key.map_err(|refusal| Flaw::at(&place, refusal))? {
                Key::Text(key) => {
                    own.insert(key, self.value(depth + 1)?);
                }
                Key::Merge => {
                    let place = self.place();
                    let maps = merged(self.value(depth + 1)?);
                    let maps = maps.ok_or_else(|| Flaw::at(&place, Refusal::Unread))?;
                    map.extend(maps.into_iter().flatten());
                }
            }
        }
        map.extend(own);
        Ok(map.into())
    }

    /// An alias in what it refers to ends by its depth.
    fn replay(&mut self, target: usize, depth: usize) -> Result<Node, Flaw> {
        let back = std::mem::replace(&mut self.at, target);
        let was_replay = std::mem::replace(&mut self.is_replay, true);
        let node = self.node(depth + 1)?;
        self.at = back;
        self.is_replay = was_replay;
        Ok(node)
    }

    fn count(&mut self, event: &Event<'_>) -> Result<(), Refusal> {
        if !self.is_replay {
            return Ok(());
        }
        let bytes = match event {
            Event::Scalar(text, ..) => text.len(),
            _ => 0,
        };
        let values_left = self.values_left.checked_sub(1);
        self.values_left = values_left.ok_or(Refusal::TooLarge)?;
        let bytes_left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = bytes_left.ok_or(Refusal::TooLarge)?;
        Ok(())
    }

    /// Goes past the end of a list or map, if it is here.
    fn take(&mut self, end: &Event<'d>) -> bool {
        let event = self.document.events.get(self.at);
        let is_here = event.is_some_and(|(event, _)| event == end);
        self.at += usize::from(is_here);
        is_here
    }

    fn place(&self) -> Marker {
        let events = &self.document.events;
        let event = events.get(self.at).or(events.last());
        event.map_or_else(Marker::default, |(_, place)| *place)
    }
}

/// The maps that `<<` names, the first one last: it wins.
fn merged(value: Value) -> Option<Vec<Map<String, Value>>> {
    let map = |value| match value {
        Value::Object(map) => Some(map),
        _ => None,
    };
    match value {
        Value::Array(list) => list.into_iter().rev().map(map).collect(),
        value => map(value).map(|map| vec![map]),
    }
}

/// The first character that ends a line to cloud-init alone, also that of a comment or of a text in quotes.
fn line_end(text: &str) -> Option<Flaw> {
    let index = text.find(ENDS_OF_LINES)?;
    let before = &text[..index];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count();
    let what = "this character (U+0085, U+2028 or U+2029) ends a line";
    let place = Marker::new(index, line, column);
    Some(Flaw::at(&place, Refusal::NoJson(what)))
}

fn kind(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Kind, Refusal> {
    match tag {
        None if style != ScalarStyle::Plain => Ok(Kind::Text),
        Some(tag) if !is_open(tag) => {
            let name = tag.suffix_in_namespace(TAGS);
            name.and_then(|name| Kind::of_tag(&name))
                .ok_or(Refusal::Unread)
        }
        _ => Ok(Kind::of_plain(text)),
    }
}

/// Whether the tag of a list or map is the one that it has without a tag.
fn check_tag(tag: Option<&Tag>, usual: &str) -> Result<(), Refusal> {
    let Some(tag) = tag.filter(|tag| !is_open(tag)) else {
        return Ok(());
    };
    match tag.suffix_in_namespace(TAGS) {
        Some(name) if name == usual => Ok(()),
        Some(Cow::Borrowed("set" | "omap" | "pairs")) => {
            Err(Refusal::NoJson("a value with this tag is none of JSON"))
        }
        _ => Err(Refusal::Unread),
    }
}

/// The tag `!`: PyYAML resolves such a scalar as one without quotes.
fn is_open(tag: &Tag) -> bool {
    tag.handle().is_empty() && tag.suffix() == "!"
}
