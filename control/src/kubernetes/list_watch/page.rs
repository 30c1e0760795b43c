//! Cuts a page of a list into its items while it arrives.
//!
//! It holds one item at a time. A whole page of objects of the largest size that the API server stores would
//! take most of a gigabyte.

use std::collections::VecDeque;

use serde::Deserialize;

/// The metadata of a list, from one of its pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Resource version of the list.
    pub(super) version: Option<String>,
    /// Token to ask for the next page; `None` on the last page.
    pub(super) more: Option<String>,
}

/// Cuts the JSON of a page into its items.
#[derive(Debug, Default)]
pub(super) struct PageCutter {
    /// Number of objects and arrays that are open.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The last string among the list's own fields: a key or a value.
    text: Vec<u8>,
    in_items: bool,
    /// The bytes of the current item so far.
    item: Vec<u8>,
    items: VecDeque<Vec<u8>>,
    /// The JSON of the list without its items.
    rest: Vec<u8>,
}

/// Depth of the list's own fields, and of its items.
const FIELDS: usize = 1;
const ITEMS: usize = 2;

impl PageCutter {
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while let Some(&byte) = bytes.first() {
            let mut length = 1;
            if self.in_string && !self.is_escaped {
                let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                length = end.unwrap_or(bytes.len()).max(1);
            }
            let (part, after) = bytes.split_at(length);
            bytes = after;
            let is_item = self.in_items && (self.depth > ITEMS || byte == b'{');
            let was_in_string = self.in_string;
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                self.step(byte);
            }
            if is_item {
                self.item.extend_from_slice(part);
                if !self.in_string && self.depth == ITEMS {
                    self.items.push_back(std::mem::take(&mut self.item));
                }
            } else if !self.in_items || byte == b'[' {
                if self.depth == FIELDS && was_in_string && self.in_string {
                    self.text.extend_from_slice(part);
                }
                self.rest.extend_from_slice(part);
            }
        }
    }

    /// Processes a byte outside strings.
    fn step(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == FIELDS {
                    self.text.clear();
                }
            }
            b'{' | b'[' => {
                self.in_items |= byte == b'[' && self.depth == FIELDS && self.text == *b"items";
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_items &= self.depth >= ITEMS;
            }
            _ => {}
        }
    }

    pub(super) fn next_item(&mut self) -> Option<Vec<u8>> {
        self.items.pop_front()
    }

    /// Reads the metadata of the list, which may follow the items.
    pub(super) fn finish(self) -> serde_json::Result<PageHead> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct List {
            metadata: Option<Metadata>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Metadata {
            resource_version: Option<String>,
            r#continue: Option<String>,
        }
        let list: List = serde_json::from_slice(&self.rest)?;
        let metadata = list.metadata.unwrap_or_default();
        let is_there = |text: &String| !text.is_empty();
        Ok(PageHead {
            version: metadata.resource_version.filter(is_there),
            more: metadata.r#continue.filter(is_there),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Cuts a list that comes in parts of a length.
    fn cut(list: &str, length: usize) -> (Vec<Value>, PageHead) {
        let mut cutter = PageCutter::default();
        let mut items = Vec::new();
        for part in list.as_bytes().chunks(length) {
            cutter.push(part);
            while let Some(item) = cutter.next_item() {
                items.push(serde_json::from_slice(&item).unwrap());
            }
        }
        (items, cutter.finish().unwrap())
    }

    #[test]
    fn items_come_one_by_one_wherever_the_list_says_what_it_is() {
        let items = [
            json!({"metadata": {"name": "a"}, "items": [{"x": []}]}),
            json!({"text": "\"items\":[{ ]}\\", "\\": "\\\""}),
            json!({}),
        ];
        let [a, b, c] = &items;
        let before = format!(
            r#"{{"kind":"items","metadata":{{"resourceVersion":"7","continue":"n"}},"items":[{a},{b} , {c}]}}"#
        );
        let behind = format!(
            r#" {{ "items" : [ {a},{b},{c} ] , "kind":"[", "metadata":{{"continue":"n","resourceVersion":"7"}} }} "#
        );
        for list in [&before, &behind] {
            for length in [1, 2, 7, list.len()] {
                let (found, head) = cut(list, length);
                assert_eq!(found, items, "{length}");
                let text = |text: &str| Some(text.to_owned());
                assert_eq!((head.version, head.more), (text("7"), text("n")));
            }
        }
    }

    #[test]
    fn list_without_items_has_none() {
        for items in ["[]", "null", "[ ]"] {
            let list = format!(
                r#"{{"items":{items},"metadata":{{"resourceVersion":"7","continue":""}}}}"#
            );
            let (found, head) = cut(&list, 3);
            assert_eq!((found, head.more), (vec![], None));
            assert_eq!(head.version.as_deref(), Some("7"));
        }
    }

    #[test]
    fn list_that_breaks_off_is_an_error() {
        let mut cutter = PageCutter::default();
        cutter.push(br#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1},{"b""#);
        assert_eq!(cutter.next_item().unwrap(), br#"{"a":1}"#);
        assert_eq!(cutter.next_item(), None);
        cutter.finish().unwrap_err();
    }

    proptest! {
        #[test]
        fn whatever_items_hold_they_are_cut_as_a_decoder_would(
            texts in vec((any::<String>(), any::<String>()), 0..5), length in 1..40_usize,
        ) {
            let items: Vec<Value> = texts.iter().map(|(key, text)| json!({key: [text, {key: text}]})).collect();
            let list = json!({"items": items, "kind": "x", "metadata": {"resourceVersion": "1"}}).to_string();
            prop_assert_eq!(cut(&list, length).0, items);
        }
    }
}
