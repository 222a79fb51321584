//! A hash map that fails instead of aborting if there is no memory for another entry.

use core::hash::Hash;

use hashbrown::HashMap;

#[derive(Debug)]
pub(crate) struct FallibleMap<K, V>(HashMap<K, V>);

impl<K, V> Default for FallibleMap<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash + Copy, V> FallibleMap<K, V> {
    /// Inserts or replaces a value. False if there is no memory for it.
    pub(crate) fn enter(&mut self, key: K, value: V) -> bool {
        if self.0.try_reserve(1).is_err() {
            return false;
        }
        self.0.insert(key, value);
        true
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.0.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.0.get_mut(&key)
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        self.0.remove(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.values_mut()
    }

    /// Keeps the entries whose value satisfies `wanted`.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&V) -> bool) {
        self.0.retain(|_, value| wanted(value));
    }

    /// Removes one entry that satisfies `chosen`. Called until it finds none, it removes all such entries without
    /// memory for a list of them.
    pub(crate) fn remove_where(&mut self, chosen: impl Fn(K, &V) -> bool) -> Option<(K, V)> {
        let found = self.0.iter().find(|(key, value)| chosen(**key, value));
        let key = *found?.0;
        self.remove(key).map(|value| (key, value))
    }
}
