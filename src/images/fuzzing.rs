//! Translations by a file, without a node.
//!
//! Invariant: the file is read by the code that reads those of a node; no clients are made.
//! Failure: as for the file, and for the name.

use super::error::Result;
use super::locator::Origin;
use super::mappings::parse;
use super::reference::Name;
use super::settings::Protocol;
use super::translate::{Place, Translator};

/// Where an image is by the rules of a file, or why there are none.
pub(crate) fn mapped(file: &str, name: &Name) -> Result<Result<String>, String> {
    let rules = parse(file, Protocol::Https, |_| Ok(None)).map_err(|e| e.to_string())?;
    let settings = Translator::new(Protocol::Https, &[]).map_err(|e| e.to_string())?;
    let translator = settings.with([rules], false);
    let place = translator.translate(name, Origin::Default, |_| false);
    Ok(place.map(|place| match place {
        Place::File(source) => source.url().to_string(),
        Place::Registry(place) => format!("oci://{place}"),
    }))
}
