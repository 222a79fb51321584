// Asks KAI's pod grouper what group a pod belongs to, for `cargo xtask kai-groups`.
//
// It is laid over KAI's tree (go test -overlay) as a test of the package of KAI's hub of plugins. It reads questions
// from the file in APPORTION_QUESTIONS and writes KAI's answers to the file in APPORTION_ANSWERS, in the same order. It
// knows how a question is written (docs/development/kai-cases.md) and judges nothing.

package pluginshub

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"gopkg.in/yaml.v3"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	k8sjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kartav1alpha1 "github.com/run-ai/karta/pkg/api/runai/v1alpha1"

	"github.com/kai-scheduler/KAI-scheduler/pkg/apis/scheduling/v2alpha2"
	commonconstants "github.com/kai-scheduler/KAI-scheduler/pkg/common/constants"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgroup"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/aml"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/cronjobs"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/defaultgrouper"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/deployment"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/grouper"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/grove"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/job"
	jobsetplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/jobset"
	kartaplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/karta"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/knative"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow"
	jaxplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/jax"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/mpi"
	notebookplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/notebook"
	pytorchplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/pytorch"
	tensorflowlugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/tensorflow"
	xgboostplugin "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/kubeflow/xgboost"
	leader_worker_set "github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/leaderworkerset"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/podjob"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/ray"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/runaijob"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/skiptopowner"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/spark"
	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/spotrequest"
)

type object = map[string]any

// A question that cannot be put to KAI, which is no answer of KAI.
type unaskable struct{ why string }

func (u unaskable) Error() string { return u.why }

func TestApportionAsks(t *testing.T) {
	text, err := os.ReadFile(os.Getenv("APPORTION_QUESTIONS"))
	if err != nil {
		t.Fatal(err)
	}
	var questions []object
	if err := k8sjson.Unmarshal(text, &questions); err != nil {
		t.Fatal(err)
	}
	answers := make([]object, 0, len(questions))
	for _, question := range questions {
		answers = append(answers, answerTo(question))
	}
	text, err = json.Marshal(answers)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("APPORTION_ANSWERS"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func answerTo(question object) (answer object) {
	defer func() {
		if cause := recover(); cause != nil {
			answer = object{"panic": fmt.Sprint(cause)}
		}
	}()
	found, err := groupOf(question)
	if why, ok := err.(unaskable); ok {
		return object{"unaskable": why.why}
	}
	if err != nil {
		return object{"error": err.Error()}
	}
	return object{"group": shown(found)}
}

func groupOf(question object) (*podgroup.Metadata, error) {
	settings, _ := question["settings"].(object)
	var pod v1.Pod
	if err := typed(question["pod"], &pod); err != nil {
		return nil, unaskable{err.Error()}
	}
	var chain []*metav1.PartialObjectMetadata
	for _, one := range list(question["other_owners"]) {
		partial := &metav1.PartialObjectMetadata{}
		if err := typed(one, partial); err != nil {
			return nil, unaskable{err.Error()}
		}
		chain = append(chain, partial)
	}
	owner := topOwner(question)
	kube, err := cluster(list(question["cluster_objects"]))
	if err != nil {
		return nil, unaskable{err.Error()}
	}
	return ask(question["grouper"].(string), settings, kube, owner, &pod, chain)
}

// The top owner; a pod without owners is its own. Grove's rule may be asked without one.
func topOwner(question object) *unstructured.Unstructured {
	owner := question["owner"]
	if owner == nil && question["grouper"] == "grove" {
		return nil
	}
	if owner == nil {
		owner = question["pod"]
	}
	content, _ := owner.(object)
	if content == nil {
		content = object{}
	}
	return &unstructured.Unstructured{Object: runtime.DeepCopyJSON(content)}
}

func ask(
	name string, settings object, kube client.Client, owner *unstructured.Unstructured, pod *v1.Pod,
	chain []*metav1.PartialObjectMetadata,
) (*podgroup.Metadata, error) {
	queueKey, poolKey := text(settings["queue_label_key"]), text(settings["node_pool_label_key"])
	old, _ := settings["search_for_legacy_pod_groups"].(bool)
	gang, _ := settings["gang_schedule"].(bool)
	defaults, _ := settings["defaults_configmap"].(object)

	base := defaultgrouper.NewDefaultGrouper(queueKey, poolKey, kube)
	base.SetDefaultConfigPerTypeConfigMapParams(text(defaults["name"]), text(defaults["namespace"]))
	sparks := spark.NewSparkGrouper(base)
	roles := kubeflow.NewKubeflowDistributedGrouper(base)
	rays := ray.NewRayGrouper(kube, base)
	hub := NewDefaultPluginsHub(kube, old, gang, false, queueKey, poolKey,
		text(defaults["name"]), text(defaults["namespace"]))

	var plugin grouper.Grouper
	switch name {
	case "default":
		plugin = base
	case "job":
		plugin = job.NewK8sJobGrouper(kube, base, old)
	case "cronjob":
		plugin = cronjobs.NewCronJobGrouper(kube, base)
	case "jobset":
		plugin = jobsetplugin.NewJobSetGrouper(kube, base)
	case "lws":
		plugin = leader_worker_set.NewLwsGrouper(base)
	case "pytorch":
		plugin = pytorchplugin.NewPyTorchGrouper(roles)
	case "tensorflow":
		plugin = tensorflowlugin.NewTensorFlowGrouper(roles)
	case "xgboost":
		plugin = xgboostplugin.NewXGBoostGrouper(roles)
	case "jax":
		plugin = jaxplugin.NewJaxGrouper(roles)
	case "mpi":
		plugin = mpi.NewMpiGrouper(kube, roles)
	case "notebook":
		plugin = notebookplugin.NewNotebookGrouper(base)
	case "ray_cluster":
		plugin = ray.NewRayClusterGrouper(rays)
	case "ray_job":
		plugin = ray.NewRayJobGrouper(rays)
	case "ray_service":
		plugin = ray.NewRayServiceGrouper(rays)
	case "knative":
		plugin = knative.NewKnativeGrouper(kube, base, gang)
	case "deployment":
		plugin = deployment.NewDeploymentGrouper(base)
	case "podjob":
		plugin = podjob.NewPodJobGrouper(base, sparks)
	case "spotrequest":
		plugin = spotrequest.NewSpotRequestGrouper(base)
	case "aml":
		plugin = aml.NewAmlGrouper(base)
	case "runaijob":
		plugin = runaijob.NewRunaiJobGrouper(kube, base, old)
	case "grove":
		plugin = grove.NewGroveGrouper(kube, base)
	case "skip_top_owner":
		plugin = skiptopowner.NewSkipTopOwnerGrouper(kube, base, hub.customPlugins)
	case "hub":
		plugin = hub.GetPodGrouperPlugin(metav1.GroupVersionKind(owner.GroupVersionKind()))
	case "spark":
		return sparks.GetPodGroupMetadata(owner, pod)
	case "kubeflow_distributed":
		var mandatory []string
		for _, role := range list(settings["mandatory_replicas"]) {
			mandatory = append(mandatory, text(role))
		}
		return roles.GetPodGroupMetadata(owner, pod, text(settings["replica_specs_field"]), mandatory)
	case "karta":
		definition := &kartav1alpha1.Karta{}
		if spec, _ := settings["karta"].(object)["spec"].(object); spec["instructions"] != nil {
			spec["optimizationInstructions"] = spec["instructions"]
		}
		if err := typed(settings["karta"], definition); err != nil {
			return nil, unaskable{err.Error()}
		}
		found, err := kartaplugin.ForApportion(definition, base)
		if err != nil {
			return nil, unaskable{err.Error()}
		}
		plugin = found
	default:
		return nil, unaskable{"no grouper " + name}
	}
	return plugin.GetPodGroupMetadata(owner, pod, chain...)
}

// The kinds that Go has types for; the others come as they are.
var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, schedulingv1.AddToScheme, v2alpha2.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// An API server that has these objects.
func cluster(objects []any) (client.Client, error) {
	versions := map[string]string{
		"Pod": "v1", "ConfigMap": "v1", "PriorityClass": "scheduling.k8s.io/v1",
		"PodGroup": v2alpha2.GroupVersion.String(), "Job": "batch/v1",
		"Revision": "serving.knative.dev/v1", "PodGang": "scheduler.grove.io/v1alpha1",
		"RayCluster": "ray.io/v1",
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).Build()
	for _, one := range objects {
		content := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(one.(object))}
		if content.GetAPIVersion() == "" {
			version, known := versions[content.GetKind()]
			if !known {
				version = "example.com/v1"
			}
			content.SetAPIVersion(version)
		}
		if content.GetDeletionTimestamp() != nil && len(content.GetFinalizers()) == 0 {
			content.SetFinalizers([]string{"example.com/waits"})
		}
		if err := kube.Create(context.Background(), content); err != nil && !known(kube, content) {
			return nil, err
		}
	}
	return kube, nil
}

func known(kube client.Client, content *unstructured.Unstructured) bool {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(content.GroupVersionKind())
	return kube.Get(context.Background(), client.ObjectKeyFromObject(content), found) == nil
}

func typed(from, into any) error {
	if from == nil {
		return nil
	}
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func list(value any) []any {
	all, _ := value.([]any)
	return all
}

func text(value any) string {
	text, _ := value.(string)
	return text
}

func shown(group *podgroup.Metadata) any {
	if group == nil {
		return nil
	}
	parts := make([]object, 0, len(group.SubGroups))
	for _, part := range group.SubGroups {
		one := object{
			"name": part.Name, "parent": part.Parent, "minAvailable": part.MinAvailable,
			"minSubGroup": part.MinSubGroup, "podsReferences": part.PodsReferences,
		}
		if wish := part.TopologyConstraints; wish != nil {
			one["topologyConstraints"] = object{
				"topology": wish.Topology, "requiredTopologyLevel": wish.RequiredTopologyLevel,
				"preferredTopologyLevel": wish.PreferredTopologyLevel,
			}
		}
		parts = append(parts, one)
	}
	whole := object{
		"name": group.Name, "namespace": group.Namespace, "queue": group.Queue,
		"priorityClassName": group.PriorityClassName, "preemptibility": group.Preemptibility,
		"minAvailable": group.MinAvailable, "minSubGroup": group.MinSubGroup,
		"labels": group.Labels, "annotations": annotations(group.Annotations),
		"owner": object{
			"kind": group.Owner.Kind, "apiVersion": group.Owner.APIVersion,
			"name": group.Owner.Name, "uid": group.Owner.UID,
		},
		"topology": group.Topology, "requiredTopologyLevel": group.RequiredTopologyLevel,
		"preferredTopologyLevel": group.PreferredTopologyLevel, "subGroups": parts,
	}
	if delay := group.PreemptionDelay; delay != nil {
		whole["preemptionDelay"] = delay.Duration.String()
	}
	if period := group.StalenessGracePeriod; period != nil {
		whole["stalenessGracePeriod"] = period.Duration.String()
	}
	return whole
}

// The metadata of the top owner is YAML, which is no matter here: it is shown as JSON.
func annotations(all map[string]string) map[string]string {
	written, exists := all[commonconstants.TopOwnerMetadataKey]
	if !exists {
		return all
	}
	var read map[string]string
	if yaml.Unmarshal([]byte(written), &read) != nil {
		return all
	}
	if text, err := json.Marshal(read); err == nil {
		all[commonconstants.TopOwnerMetadataKey] = string(text)
	}
	return all
}
