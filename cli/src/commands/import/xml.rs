//! XML of a file that may be hostile, as a tree of elements.
//!
//! Invariant: depth, number of elements and number of attributes are bounded, the length of the text by
//! the caller. There is no document type, so that no entity but those of XML itself exists. Names are
//! without their prefixes.
//! Failure: [`XmlError`].

use quick_xml::XmlVersion;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::reader::Reader;

use super::shown;

const DEPTH: usize = 32;
const ELEMENTS: usize = 20_000;
/// Of one element.
const ATTRIBUTES: usize = 64;

/// Why a text is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum XmlError {
    #[error("it is no well-formed XML: {0}")]
    Malformed(String),
    #[error("it ends before its elements do")]
    CutOff,
    #[error("it has a document type, which no OVF descriptor has")]
    DocumentType,
    #[error("it uses the entity {0:?}, which it cannot define")]
    Entity(String),
    #[error("it has more than {0}")]
    Bound(&'static str),
}

impl From<quick_xml::Error> for XmlError {
    fn from(error: quick_xml::Error) -> Self {
        // It repeats names of the text.
        Self::Malformed(shown(&error.to_string()))
    }
}

/// An element with all that is in it.
#[derive(Debug, Default, Clone)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) children: Vec<Self>,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// Reads the outermost element.
    pub(super) fn parse(text: &str) -> Result<Self, XmlError> {
        let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
        let mut open: Vec<Self> = Vec::new();
        let mut count = 0;
        loop {
            let complete = match reader.read_event()? {
                Event::Start(start) => {
                    open.push(Self::begin(&start, &mut count, open.len())?);
                    continue;
                }
                Event::Empty(start) => Self::begin(&start, &mut count, open.len())?,
                Event::End(_) => open.pop().ok_or(XmlError::CutOff)?,
                Event::DocType(_) => return Err(XmlError::DocumentType),
                Event::Eof => return Err(XmlError::CutOff),
                other => {
                    if let Some(inner) = open.last_mut() {
                        inner.add_text(&other)?;
                    }
                    continue;
                }
            };
            match open.last_mut() {
                Some(parent) => parent.children.push(complete),
                None => return Ok(complete),
            }
        }
    }

    fn begin(start: &BytesStart<'_>, count: &mut usize, depth: usize) -> Result<Self, XmlError> {
        *count += 1;
        if *count > ELEMENTS {
            return Err(XmlError::Bound("20000 elements"));
        }
        if depth >= DEPTH {
            return Err(XmlError::Bound("32 elements within each other"));
        }
        let mut attributes = Vec::new();
        // The library compares each attribute with all others, which takes too long for many.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(quick_xml::Error::from)?;
            if attributes.len() == ATTRIBUTES {
                return Err(XmlError::Bound("64 attributes of one element"));
            }
            let value = attribute.normalized_value(XmlVersion::Implicit1_0)?;
            let key = attribute.key.local_name().into_inner().to_owned();
            attributes.push((key, value.into_owned()));
        }
        Ok(Self {
            name: start.local_name().into_inner().to_owned(),
            attributes,
            ..Self::default()
        })
    }

    fn add_text(&mut self, event: &Event<'_>) -> Result<(), XmlError> {
        match event {
            Event::Text(text) => self.text.push_str(&text.xml10_content()),
            Event::CData(text) => self.text.push_str(&text.xml10_content()),
            Event::GeneralRef(reference) => self.text.push(character(reference)?),
            _ => {}
        }
        Ok(())
    }

    /// The value of the first attribute with this name.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Elements directly within this one.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The first of them.
    pub(super) fn first(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of the first of them; none if it is empty.
    pub(super) fn text_of(&self, name: &str) -> Option<&str> {
        let text = self.first(name)?.text.trim();
        Some(text).filter(|text| !text.is_empty())
    }
}

/// What a reference stands for.
fn character(reference: &BytesRef<'_>) -> Result<char, XmlError> {
    if let Some(character) = reference.resolve_char_ref()? {
        return Ok(character);
    }
    let name = reference.xml10_content();
    match name.as_ref() {
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "amp" => Ok('&'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        other => Err(XmlError::Entity(shown(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Element::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn elements_are_read_without_their_prefixes() {
        let text = "\u{feff}<?xml version=\"1.0\"?><o:a xmlns:o=\"x\"><!-- c --><b o:id=\"1 &lt; 2\">\
                    a&amp;&#98;<![CDATA[<c>]]></b><b/></o:a>";
        let root = Element::parse(text).unwrap();
        assert_eq!((root.name.as_str(), root.all("b").count()), ("a", 2));
        let first = root.first("b").unwrap();
        assert_eq!(first.attribute("id"), Some("1 < 2"));
        assert_eq!(root.text_of("b"), Some("a&b<c>"));
    }

    #[test]
    fn no_entity_is_expanded() {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"cccc\"><!ENTITY d \"&b;&b;&b;\">]><a>&d;</a>";
        assert!(refused(bomb).contains("document type"), "{}", refused(bomb));
        let file = "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>";
        assert!(refused(file).contains("document type"));
        assert!(refused("<a>&own;</a>").contains("\"own\""));
        assert!(Element::parse("<a b=\"&own;\"/>").is_err());
    }

    #[test]
    fn what_is_not_bounded_or_not_complete_is_refused() {
        assert!(refused(&"<a>".repeat(DEPTH + 1)).contains("within each other"));
        let wide = format!("<a>{}</a>", "<b/>".repeat(ELEMENTS));
        assert!(refused(&wide).contains("20000 elements"));
        let attributes: String = (0..=ATTRIBUTES).map(|n| format!(" a{n}=''")).collect();
        assert!(refused(&format!("<a{attributes}/>")).contains("64 attributes"));
        for text in ["", "<a>", "<a></b>", "text", "<a", "</a>", "<a>&#0;</a>"] {
            assert!(Element::parse(text).is_err(), "{text}");
        }
        assert!(Element::parse(&"<a>".repeat(DEPTH)).is_err());
    }
}
