use crate::filter::QueueId;

/// A set of queues, with one bit per queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSet {
    /// 64 queues per word. The last word is not 0, so equal sets have equal words.
    words: Vec<u64>,
}

impl QueueSet {
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    pub fn insert(&mut self, queue: QueueId) {
        let (word, bit) = (queue.index() / 64, queue.index() % 64);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    #[must_use]
    pub fn contains(&self, queue: QueueId) -> bool {
        let (word, bit) = (queue.index() / 64, queue.index() % 64);
        self.words.get(word).is_some_and(|word| word & 1 << bit != 0)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the queues in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = QueueId> + '_ {
        let bits = |word: u64| (0..64_u16).filter(move |bit| word & 1 << bit != 0);
        // The queue number cannot overflow: each inserted number has 16 bits.
        (0_u16..)
            .zip(&self.words)
            .flat_map(move |(index, word)| bits(*word).map(move |bit| QueueId(index * 64 + bit)))
    }
}

impl Extend<QueueId> for QueueSet {
    fn extend<T: IntoIterator<Item = QueueId>>(&mut self, queues: T) {
        queues.into_iter().for_each(|queue| self.insert(queue));
    }
}

impl FromIterator<QueueId> for QueueSet {
    fn from_iter<T: IntoIterator<Item = QueueId>>(queues: T) -> Self {
        let mut set = Self::new();
        set.extend(queues);
        set
    }
}
