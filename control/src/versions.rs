//! The difference between two versions of a map.

use imbl::ordmap::DiffItem;

type Side<'map, K, V> = Option<(&'map K, &'map V)>;

/// Returns the old and the new entry of a change.
pub(crate) fn sides<'old, 'new, K, V>(
    change: DiffItem<'old, 'new, K, V>,
) -> (Side<'old, K, V>, Side<'new, K, V>) {
    match change {
        DiffItem::Add(key, new) => (None, Some((key, new))),
        DiffItem::Remove(key, old) => (Some((key, old)), None),
        DiffItem::Update { old, new } => (Some(old), Some(new)),
    }
}
