//! The tag of an acquisition: text of the caller that other clients see beside the label.

use std::fmt;
use std::sync::Arc;

use crate::telemetry::{PanicSource, Reporter};
use lock_protocol::wire::{MAX_LABEL, MAX_TAG, tidy};

/// Between the label and the tag.
const SEPARATOR: &str = " #";

/// The user's function that returns the tag of the calling task.
#[derive(Clone)]
pub(crate) struct HolderTag(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl HolderTag {
    pub(crate) fn new(tag: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(tag))
    }

    /// Returns the label with the tag of the calling task. A panic of the user's function is counted,
    /// and the lock has no tag.
    pub(crate) fn label(&self, label: &Arc<str>, reporter: &Reporter) -> Arc<str> {
        let tag = reporter.guarded(PanicSource::HolderTag, || (self.0)());
        let tagged = tag.flatten().and_then(|tag| with_tag(label, &tag));
        tagged.unwrap_or_else(|| Arc::clone(label))
    }
}

/// Appends a tag to a label, which loses its end if both are too long. Returns `None` for a tag without
/// visible ASCII characters.
fn with_tag(label: &str, tag: &str) -> Option<Arc<str>> {
    let visible = tag.chars().filter(char::is_ascii_graphic);
    let tag: String = visible.take(MAX_TAG).collect();
    if tag.is_empty() {
        return None;
    }
    let label = tidy(label, MAX_LABEL - SEPARATOR.len() - tag.len());
    Some([&label, SEPARATOR, &tag].concat().into())
}

impl fmt::Debug for HolderTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HolderTag(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::wire::label_tag;

    #[test]
    fn tag_is_appended_in_visible_ascii() {
        for (tag, expected) in [
            ("4bf9", Some("web-1 #4bf9")),
            ("a b\n\u{e9}#c", Some("web-1 #ab#c")),
            ("", None),
            (" \n\u{202e}", None),
        ] {
            assert_eq!(with_tag("web-1", tag).as_deref(), expected, "{tag}");
        }
        let long = with_tag(&"l".repeat(96), &"t".repeat(40)).unwrap();
        assert_eq!(long.len(), MAX_LABEL);
        assert_eq!(label_tag(&long), Some(&*"t".repeat(32)));
    }

    #[test]
    fn panic_of_the_function_is_counted() {
        let reporter = Reporter::default();
        let label = "web-1".into();
        let tag = HolderTag::new(|| panic!("as the test wants"));
        assert_eq!(tag.label(&label, &reporter), label);
        assert_eq!(reporter.read().panics, 1);
    }
}
