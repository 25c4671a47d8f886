//! Plugins whose links cannot carry a guest, found by their types before they are called.
//!
//! Invariant: a plugin that is not named here is called; the bridge setup checks the links that
//! it made.
//! Failure: none; the sentence states what prevents it and what to use instead.

/// Why the network cannot be used, if it cannot.
pub(crate) fn obstacle<'a>(plugins: impl IntoIterator<Item = &'a str>) -> Option<String> {
    plugins.into_iter().find_map(|kind| {
        let why = match kind {
            "ipvlan" => {
                "its links have the MAC address of their parent and take packets by IP address, while a \
                 guest needs a MAC address of its own"
            }
            "sriov" => "SR-IOV virtual functions are not supported yet",
            _ => return None,
        };
        Some(format!(
            "the plugin {kind} cannot carry guests: {why}; use bridge, ptp, macvlan or a plugin that \
             leaves a veth pair"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::obstacle;

    #[test]
    fn the_sentence_names_plugin_reason_and_way_out() {
        let words = obstacle(["bandwidth", "ipvlan"]).unwrap();
        for part in ["ipvlan", "MAC address", "macvlan"] {
            assert!(words.contains(part), "{words}");
        }
        assert!(obstacle(["sriov"]).unwrap().contains("not supported yet"));
        assert_eq!(obstacle(["bridge", "ptp", "macvlan", "multus"]), None);
    }
}
