//! `CUDA_VISIBLE_DEVICES`: which cards a process sees, and in what order.

/// The cards that a wish makes visible, by their number in the machine. As with the real driver the
/// list ends at the first entry that names no card, and a card that is named twice empties it.
pub(crate) fn visible(wish: Option<&str>, uuids: &[&str]) -> Vec<usize> {
    let Some(wish) = wish else {
        return (0..uuids.len()).collect();
    };
    let mut cards = Vec::new();
    for entry in wish.split(',') {
        let Some(card) = named(entry.trim(), uuids) else {
            break;
        };
        if cards.contains(&card) {
            return Vec::new();
        }
        cards.push(card);
    }
    cards
}

/// A number, or as much of a UUID as only one card has.
fn named(entry: &str, uuids: &[&str]) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut matching = (0..uuids.len()).filter(|card| uuids[*card].starts_with(entry));
        let card = matching.next()?;
        return matching.next().is_none().then_some(card);
    }
    entry.parse().ok().filter(|card| *card < uuids.len())
}

#[cfg(test)]
mod tests {
    use super::visible;

    const UUIDS: &[&str] = &["GPU-aaa1", "GPU-aab2", "GPU-ccc3"];

    #[test]
    fn without_a_wish_every_card_is_visible() {
        assert_eq!(visible(None, UUIDS), [0, 1, 2]);
    }

    #[test]
    fn cards_come_in_the_order_in_which_they_are_named() {
        assert_eq!(visible(Some("2,0"), UUIDS), [2, 0]);
        assert_eq!(visible(Some(" 1 , GPU-ccc3"), UUIDS), [1, 2]);
    }

    #[test]
    fn a_uuid_may_be_abbreviated_as_long_as_it_means_one_card() {
        assert_eq!(visible(Some("GPU-aab"), UUIDS), [1]);
        assert_eq!(visible(Some("GPU-aa"), UUIDS), [0; 0]);
    }

    #[test]
    fn the_list_ends_at_the_first_entry_that_names_nothing() {
        assert_eq!(visible(Some("1,9,0"), UUIDS), [1]);
        assert_eq!(visible(Some("-1"), UUIDS), [0; 0]);
        assert_eq!(visible(Some(""), UUIDS), [0; 0]);
        assert_eq!(visible(Some("NoDevFiles"), UUIDS), [0; 0]);
    }

    #[test]
    fn a_card_named_twice_leaves_none() {
        assert_eq!(visible(Some("1,1"), UUIDS), [0; 0]);
    }
}
