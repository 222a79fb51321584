//! The components of a workload, as its Karta defines them.

use serde_json::Value;

use crate::error::GroupingError;
use crate::object::ObjectView;

use super::expression::JqExpression;

/// The fields that mark a component as one with pods.
const POD_SPECS: [&str; 3] = [
    "podTemplateSpecPath",
    "podSpecPath",
    "fragmentedPodSpecDefinition",
];

/// All components; the first is the root.
pub(super) struct KartaComponents<'a> {
    all: Vec<KartaComponent<'a>>,
    owner: ObjectView<'a>,
}

#[derive(Clone, Copy)]
struct KartaComponent<'a>(ObjectView<'a>);

impl<'a> KartaComponents<'a> {
    pub(super) fn read(
        karta: ObjectView<'a>,
        owner: ObjectView<'a>,
    ) -> Result<Self, GroupingError> {
        let path = ["spec", "structureDefinition"];
        let structure = karta
            .part(&path)
            .ok_or_else(|| GroupingError::unset(karta, &path.join(".")))?;
        let root = structure
            .part(&["rootComponent"])
            .ok_or_else(|| GroupingError::unset(karta, "rootComponent"))?;
        let children = structure.list(&["childComponents"])?;
        let all = [root]
            .into_iter()
            .chain(children.iter().map(ObjectView::new));
        Ok(Self {
            all: all.map(KartaComponent).collect(),
            owner,
        })
    }

    pub(super) fn root(&self) -> &'a str {
        self.all.first().map_or("", |root| root.name())
    }

    fn find(&self, name: &str) -> Option<KartaComponent<'a>> {
        let mut all = self.all.iter();
        all.find(|component| component.name() == name).copied()
    }

    fn require(&self, name: &str) -> Result<KartaComponent<'a>, GroupingError> {
        self.find(name).ok_or_else(|| GroupingError::Expression {
            expression: name.to_owned(),
            why: "the Karta has no component of this name".to_owned(),
        })
    }

    fn children(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let children = self
            .all
            .iter()
            .filter(move |one| one.parent() == Some(name));
        children.map(|child| child.name())
    }

    /// A component and its parents, the nearest first. A cycle in the definition ends where it closes.
    pub(super) fn lineage(&self, name: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::successors(Some(name), |name: &&'a str| self.find(name)?.parent())
            .take(self.all.len())
    }

    /// Whether a pod belongs to a component or to one of its children.
    pub(super) fn holds(&self, name: &str, pod: ObjectView<'_>) -> Result<bool, GroupingError> {
        self.holds_within(name, pod, self.all.len())
    }

    fn holds_within(
        &self,
        name: &str,
        pod: ObjectView<'_>,
        depth: usize,
    ) -> Result<bool, GroupingError> {
        if self.require(name)?.selects(pod)? {
            return Ok(true);
        }
        for child in self.children(name).take(depth) {
            if self.holds_within(child, pod, depth - 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The component of a pod: the first with pods that selects it, or the only one with pods.
    pub(super) fn of_pod(&self, pod: ObjectView<'_>) -> Result<&'a str, GroupingError> {
        let with_pods: Vec<_> = self.all.iter().filter(|one| one.has_pods()).collect();
        if let [only] = with_pods.as_slice() {
            return Ok(only.name());
        }
        for component in with_pods {
            if component.selects(pod)? {
                return Ok(component.name());
            }
        }
        Err(GroupingError::NoMember(pod.to_string()))
    }

    /// The instance of its component that a pod belongs to, if there are several.
    pub(super) fn instance_of(
        &self,
        name: &str,
        pod: ObjectView<'_>,
    ) -> Result<Option<String>, GroupingError> {
        let component = self.require(name)?;
        let instances = component.instances(self.owner)?;
        if instances.is_empty() || component.0.at(&["podSelector"]).is_none() {
            return Ok(None);
        }
        let path = ["podSelector", "componentInstanceSelector", "idPath"];
        let found =
            JqExpression::parse(component.0.text(&path).unwrap_or_default())?.text(pod.json())?;
        if instances.contains(&found) {
            Ok(Some(found))
        } else {
            Err(GroupingError::NoMember(pod.to_string()))
        }
    }

    /// The pods of a component (or of one instance of it) with all its children. A level without a number leaves it
    /// to the others. If no level has one, each component with pods has one pod.
    pub(super) fn scale(&self, name: &str, instance: Option<&str>) -> Result<i64, GroupingError> {
        if self
            .all
            .iter()
            .any(|one: &KartaComponent<'_>| one.0.at(&["scaleDefinition"]).is_some())
        {
            self.scale_within(name, instance, self.all.len())
        } else {
            self.leaves_within(name, instance, self.all.len())
        }
    }

    fn scale_within(
        &self,
        name: &str,
        instance: Option<&str>,
        depth: usize,
    ) -> Result<i64, GroupingError> {
        let own = self.require(name)?.scale(self.owner, instance)?;
        let mut below = 0_i64;
        for child in self.children(name).take(depth) {
            below = below.saturating_add(self.scale_within(child, None, depth - 1)?);
        }
        Ok(match (own, below) {
            (own, 0) => own,
            (0, below) => below,
            (own, below) => own.saturating_mul(below),
        })
    }

    fn leaves_within(
        &self,
        name: &str,
        instance: Option<&str>,
        depth: usize,
    ) -> Result<i64, GroupingError> {
        let component = self.require(name)?;
        if component.has_pods() {
            return Ok(match component.0.at(&["instanceIdPath"]).zip(instance) {
                Some(_) => 1,
                None => i64::try_from(component.instances(self.owner)?.len().max(1)).unwrap_or(1),
            });
        }
        let mut leaves = 0_i64;
        for child in self.children(name).take(depth) {
            leaves = leaves.saturating_add(self.leaves_within(child, None, depth - 1)?);
        }
        Ok(leaves)
    }
}

impl<'a> KartaComponent<'a> {
    fn name(self) -> &'a str {
        self.0.text(&["name"]).unwrap_or_default()
    }

    fn parent(self) -> Option<&'a str> {
        self.0.text(&["ownerRef"])
    }

    fn has_pods(self) -> bool {
        POD_SPECS
            .iter()
            .any(|path| self.0.at(&["specDefinition", path]).is_some())
    }

    fn selects(self, pod: ObjectView<'_>) -> Result<bool, GroupingError> {
        let Some(selector) = self.0.part(&["podSelector", "componentTypeSelector"]) else {
            return Ok(false);
        };
        let key = JqExpression::parse(selector.text(&["keyPath"]).unwrap_or_default())?;
        let wanted = selector.at(&["value"]);
        let found = key.values(pod.json())?;
        Ok(found.iter().any(|found| match wanted {
            Some(value) => found == value,
            None => !found.is_null(),
        }))
    }

    /// The ids of its instances, if it has several.
    fn instances(self, owner: ObjectView<'_>) -> Result<Vec<String>, GroupingError> {
        let Some(path) = self.0.text(&["instanceIdPath"]) else {
            return Ok(Vec::new());
        };
        let path = JqExpression::parse(path)?;
        let found = path.values(owner.json())?;
        let ids = found
            .iter()
            .map(|id| id.as_str().filter(|id| !id.is_empty()));
        let ids: Option<Vec<_>> = ids.map(|id| id.map(str::to_owned)).collect();
        ids.ok_or_else(|| path.wrong("an instance has no id".to_owned()))
    }

    /// Its replicas, or those of one instance; the minimum, if stated, wins over the number.
    fn scale(self, owner: ObjectView<'_>, instance: Option<&str>) -> Result<i64, GroupingError> {
        let Some(definition) = self.0.part(&["scaleDefinition"]) else {
            return Ok(0);
        };
        let numbers = |field| match definition.text(&[field]) {
            Some(path) => numbers(path, owner),
            None => Ok(Vec::new()),
        };
        let (all, least, most) = (
            numbers("replicasPath")?,
            numbers("minReplicasPath")?,
            numbers("maxReplicasPath")?,
        );
        let count = all.len().max(least.len()).max(most.len());
        let instances = match self.0.at(&["instanceIdPath"]) {
            Some(_) => self.instances(owner)?,
            None => vec![String::new()],
        };
        if count != instances.len() {
            let why = format!(
                "{count} numbers of replicas for {} instances",
                instances.len()
            );
            return Err(GroupingError::field(owner, self.name(), why));
        }
        let at = |all: &[i64], index| all.get(index).copied().filter(|count| *count > 0);
        let chosen = (0..count).filter(|index| instance.is_none_or(|id| instances[*index] == id));
        Ok(chosen
            .map(|index| at(&least, index).or_else(|| at(&all, index)).unwrap_or(0))
            .fold(0, i64::saturating_add))
    }
}

/// The numbers that a path yields; null is zero.
fn numbers(path: &str, owner: ObjectView<'_>) -> Result<Vec<i64>, GroupingError> {
    let path = JqExpression::parse(path)?;
    let found = path.values(owner.json())?;
    let numbers: Option<Vec<i64>> = found
        .iter()
        .map(|found| match found {
            Value::Null => Some(0),
            found => found.as_i64(),
        })
        .collect();
    numbers.ok_or_else(|| path.wrong(format!("{found:?} are not whole numbers")))
}
