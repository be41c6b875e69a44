//! Which objects cause the most events, in bounded memory.

/// How many objects are counted per tenant.
pub const NOISIEST: usize = 16;

/// Counts the most frequent objects ("space saving" of Metwally et al.): with more than [`NOISIEST`]
/// objects the rarest gives its place, and its count, to a new one. An object that makes up more than a
/// sixteenth of all events is always in the list; counts may be too high, never too low.
#[derive(Debug, Clone)]
pub struct Noisiest<O> {
    /// At most [`NOISIEST`], not sorted.
    counts: Vec<(O, u64)>,
}

impl<O> Default for Noisiest<O> {
    fn default() -> Self {
        Self { counts: Vec::new() }
    }
}

impl<O: Ord + Clone> Noisiest<O> {
    /// Counts one event of `object`.
    pub fn record(&mut self, object: &O) {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| known == object) {
            *count += 1;
        } else if self.counts.len() < NOISIEST {
            self.counts.push((object.clone(), 1));
        } else if let Some(rarest) = self.counts.iter_mut().min_by_key(|(_, count)| *count) {
            *rarest = (object.clone(), rarest.1 + 1);
        }
    }

    /// The `n` most frequent objects with their counts, most frequent first, equals by object.
    pub fn top(&self, n: usize) -> Vec<(O, u64)> {
        let mut sorted = self.counts.clone();
        sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sorted.truncate(n);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_object_survives_a_crowd_of_rare_ones() {
        let mut noisiest = Noisiest::default();
        for n in 0..1_000 {
            noisiest.record(&format!("rare-{n}"));
            if n % 5 == 0 {
                noisiest.record(&"loop".to_owned());
            }
        }
        let top = noisiest.top(3);
        assert_eq!(top[0].0, "loop");
        assert!(top[0].1 >= 200);
    }

    #[test]
    fn equals_are_sorted_by_object() {
        let mut noisiest = Noisiest::default();
        for object in ["b", "a", "c", "c"] {
            noisiest.record(&object);
        }
        assert_eq!(noisiest.top(8), [("c", 2), ("a", 1), ("b", 1)]);
        assert_eq!(noisiest.top(1), [("c", 2)]);
    }
}
