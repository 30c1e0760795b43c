//! Two versions of a map: what changed from the one to the other.

use imbl::ordmap::DiffItem;

type Side<'map, K, V> = Option<(&'map K, &'map V)>;

/// Returns what a change took away and what it brought.
pub(crate) fn sides<'old, 'new, K, V>(
    change: DiffItem<'old, 'new, K, V>,
) -> (Side<'old, K, V>, Side<'new, K, V>) {
    match change {
        DiffItem::Add(key, new) => (None, Some((key, new))),
        DiffItem::Remove(key, old) => (Some((key, old)), None),
        DiffItem::Update { old, new } => (Some(old), Some(new)),
    }
}
