//! The components of a workload, as its Karta divides it.

use crate::malformed::Malformed;
use crate::object::Object;

use super::expression::Expression;

/// All components; the first is the root.
pub(super) struct Components(Vec<Component>);

struct Component {
    name: String,
    parent: Option<String>,
    /// How many there are of it in one of its parent; `None` where the definition does not say.
    replicas: Option<u32>,
    has_pods: bool,
    selector: Option<Selector>,
}

/// Which pods are a component's own.
struct Selector {
    key: Expression,
    value: Option<String>,
}

impl Components {
    pub(super) fn read(karta: Object<'_>, owner: Object<'_>) -> Result<Self, Malformed> {
        let structure = karta
            .part(&["spec", "structureDefinition"])
            .ok_or_else(|| Malformed::unset(karta, "spec.structureDefinition"))?;
        let root = structure
            .part(&["rootComponent"])
            .ok_or_else(|| Malformed::unset(karta, "spec.structureDefinition.rootComponent"))?;
        let children = structure.list(&["childComponents"])?;
        [root]
            .into_iter()
            .chain(children.iter().map(Object::new))
            .map(|component| Component::read(component, owner))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn find(&self, name: &str) -> Option<&Component> {
        self.0.iter().find(|component| component.name == name)
    }

    pub(super) fn parent(&self, name: &str) -> Option<&str> {
        self.find(name)?.parent.as_deref()
    }

    /// A component and what it is part of, the nearest first. A definition that is a ring ends where it closes.
    fn lineage<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Component> {
        let first = self.find(name);
        std::iter::successors(first, |component| self.find(component.parent.as_deref()?))
            .take(self.0.len())
    }

    /// The nearest of `names` that is the component or holds it.
    pub(super) fn nearest<'n>(&self, component: &str, names: &[&'n str]) -> Option<&'n str> {
        self.lineage(component)
            .find_map(|found| names.iter().copied().find(|name| *name == found.name))
    }

    /// Whether a pod of component `own` is a pod of `component`. All pods are the root's.
    pub(super) fn holds(&self, component: &str, own: Option<&str>) -> bool {
        let is_root = self.0.first().is_some_and(|root| root.name == component);
        is_root || own.is_some_and(|own| self.nearest(own, &[component]).is_some())
    }

    /// The component of a pod: the deepest one that selects it.
    pub(super) fn of_pod(&self, pod: Object<'_>) -> Result<Option<&str>, Malformed> {
        let mut deepest: Option<(usize, &str)> = None;
        for component in &self.0 {
            let depth = self.lineage(&component.name).count();
            if component.selects(pod)? && deepest.is_none_or(|(found, _)| depth > found) {
                deepest = Some((depth, &component.name));
            }
        }
        Ok(deepest.map(|(_, name)| name))
    }

    /// All pods of the workload.
    pub(super) fn replicas(&self) -> u32 {
        self.0
            .first()
            .map_or(0, |root| self.pods_within(&root.name))
    }

    /// The pods of a component and of what is part of it.
    pub(super) fn replicas_of(&self, name: &str) -> Result<u32, Malformed> {
        match self.find(name) {
            Some(_) => Ok(self.pods_within(name)),
            None => Err(Malformed::Expression {
                expression: name.to_owned(),
                why: "the Karta has no component of this name".to_owned(),
            }),
        }
    }

    fn pods_within(&self, name: &str) -> u32 {
        self.0
            .iter()
            .filter(|component| component.has_pods || !self.is_parent(component))
            .filter(|component| self.nearest(&component.name, &[name]).is_some())
            .map(|component| {
                let mut inside = true;
                self.lineage(&component.name)
                    .take_while(|above| std::mem::replace(&mut inside, above.name != name))
                    .map(|above| above.replicas.unwrap_or(1))
                    .fold(1, u32::saturating_mul)
            })
            .fold(0, u32::saturating_add)
    }

    fn is_parent(&self, component: &Component) -> bool {
        self.0
            .iter()
            .any(|other| other.parent.as_deref() == Some(&component.name))
    }
}

impl Component {
    fn read(component: Object<'_>, owner: Object<'_>) -> Result<Self, Malformed> {
        let text = |path: &[&str]| component.text(path).map(str::to_owned);
        Ok(Self {
            name: text(&["name"]).unwrap_or_default(),
            parent: text(&["ownerRef"]),
            replicas: replicas(component, owner)?,
            has_pods: component.at(&["specDefinition"]).is_some(),
            selector: component
                .part(&["podSelector", "componentTypeSelector"])
                .map(Selector::read)
                .transpose()?,
        })
    }

    fn selects(&self, pod: Object<'_>) -> Result<bool, Malformed> {
        self.selector
            .as_ref()
            .map_or(Ok(false), |selector| selector.selects(pod))
    }
}

impl Selector {
    fn read(selector: Object<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            key: Expression::parse(selector.text(&["keyPath"]).unwrap_or_default())?,
            value: selector.text(&["value"]).map(str::to_owned),
        })
    }

    fn selects(&self, pod: Object<'_>) -> Result<bool, Malformed> {
        let found = self.key.values(pod.json())?;
        Ok(found.iter().any(|found| match &self.value {
            Some(value) => found.as_str() == Some(value),
            None => !found.is_null(),
        }))
    }
}

/// The least number that is said, else the number.
fn replicas(component: Object<'_>, owner: Object<'_>) -> Result<Option<u32>, Malformed> {
    for field in ["minReplicasPath", "replicasPath"] {
        let Some(path) = component.text(&["scaleDefinition", field]) else {
            continue;
        };
        let found = Expression::parse(path)?.values(owner.json())?;
        let counts = found.iter().filter_map(|value| value.as_u64());
        let counts: Vec<u64> = counts.collect();
        if !counts.is_empty() {
            let sum = counts.into_iter().fold(0, u64::saturating_add);
            return Ok(Some(u32::try_from(sum).unwrap_or(u32::MAX)));
        }
    }
    Ok(None)
}
