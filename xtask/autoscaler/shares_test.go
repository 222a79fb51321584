// Laid over Cluster Autoscaler's own tree by `cargo xtask autoscaler`: its loop, with its fake cloud and its fake API
// server, over pods as Apportion's webhook completes them. Nothing of the autoscaler is changed.
package inmemory

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	fakecloudprovider "k8s.io/autoscaler/cluster-autoscaler/cloudprovider/test"
	"k8s.io/autoscaler/cluster-autoscaler/simulator/framework"
	"k8s.io/autoscaler/cluster-autoscaler/test/integration"
	synctestutils "k8s.io/autoscaler/cluster-autoscaler/test/integration/synctest"
	"k8s.io/autoscaler/cluster-autoscaler/utils/test"
)

// A mix of pods, and what each node of the group offers.
type apportionQuestion struct {
	Pods  []*apiv1.Pod      `json:"pods"`
	Offer map[string]string `json:"offer"`
	// What each pod takes of the GPU of its node, and what that has.
	Takes    []int64 `json:"takes"`
	Capacity int64   `json:"capacity"`
}

// How many nodes there were: after the first loop, when all pods had a place, and after the pods had gone.
type apportionAnswer struct {
	First int    `json:"first"`
	All   int    `json:"all"`
	After int    `json:"after"`
	Left  int    `json:"left"`
	Error string `json:"error,omitempty"`
}

const (
	apportionUnneeded = time.Minute
	apportionLoops    = 10
)

func TestApportionAsks(t *testing.T) {
	text, err := os.ReadFile(os.Getenv("APPORTION_QUESTIONS"))
	if err != nil {
		t.Skip("cargo xtask autoscaler asks")
	}
	var questions []apportionQuestion
	if err := json.Unmarshal(text, &questions); err != nil {
		t.Fatal(err)
	}
	answers := make([]apportionAnswer, len(questions))
	for i, question := range questions {
		t.Run(fmt.Sprint(i), func(t *testing.T) { answers[i] = apportionScale(t, question) })
	}
	text, err = json.Marshal(answers)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("APPORTION_ANSWERS"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func apportionScale(t *testing.T, question apportionQuestion) (answer apportionAnswer) {
	config := integration.NewTestConfig().WithOverrides(
		integration.WithCloudProviderName("gce"),
		integration.WithScaleDownUnneededTime(apportionUnneeded),
	)
	options := config.ResolveOptions()
	infra := integration.SetupInfrastructure(t)
	fakes := infra.Fakes
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer synctestutils.TearDown(cancel)
		autoscaler, _, err := integration.DefaultAutoscalingBuilder(options, infra).Build(ctx)
		if err != nil {
			answer.Error = err.Error()
			return
		}
		// A node that stays, without a GPU, and a group of which there is none.
		plain := test.BuildTestNode("plain-0", 1000, 1000, test.IsReady(true))
		fakes.CloudProvider.AddNodeGroup("plain", fakecloudprovider.WithNode(plain), fakecloudprovider.WithNGSize(1, 1))
		fakes.K8s.AddPod(test.BuildScheduledTestPod("keeps", 900, 100, plain.Name))
		template := test.BuildTestNode("gpu", 1_000_000, 1_000_000_000_000, test.IsReady(true))
		for name, amount := range question.Offer {
			quantity := resource.MustParse(amount)
			template.Status.Capacity[apiv1.ResourceName(name)] = quantity
			template.Status.Allocatable[apiv1.ResourceName(name)] = quantity
		}
		fakes.CloudProvider.AddNodeGroup("gpus",
			fakecloudprovider.WithTemplate(framework.NewTestNodeInfo(template)), fakecloudprovider.WithNGSize(0, 500))
		for _, pod := range question.Pods {
			test.MarkUnschedulable()(pod)
			fakes.K8s.AddPod(pod)
		}
		size := func() int {
			size, _ := fakes.CloudProvider.GetNodeGroup("gpus").TargetSize()
			return size
		}
		free := map[string]int64{}
		waiting := map[int]bool{}
		for place := range question.Pods {
			waiting[place] = true
		}
		for loop := 0; loop < apportionLoops && len(waiting) > 0; loop++ {
			synctestutils.MustRunOnceAfter(t, autoscaler, 10*time.Second)
			if loop == 0 {
				answer.First = size()
			}
			for _, node := range fakes.K8s.Nodes().Items {
				if _, known := free[node.Name]; !known && node.Name != plain.Name {
					free[node.Name] = question.Capacity
				}
			}
			// As the scheduler does: the fullest GPU that has room.
			for place, pod := range question.Pods {
				best := ""
				for name, left := range free {
					fits := left >= question.Takes[place]
					if fits && (best == "" || left < free[best] || (left == free[best] && name < best)) {
						best = name
					}
				}
				if !waiting[place] || best == "" {
					continue
				}
				delete(waiting, place)
				free[best] -= question.Takes[place]
				fakes.K8s.DeletePod(pod.Namespace, pod.Name)
				bound := pod.DeepCopy()
				bound.Spec.NodeName = best
				bound.Status = apiv1.PodStatus{Phase: apiv1.PodRunning}
				fakes.K8s.AddPod(bound)
			}
		}
		answer.All, answer.Left = size(), len(waiting)
		for _, pod := range question.Pods {
			fakes.K8s.DeletePod(pod.Namespace, pod.Name)
		}
		for loop := 0; loop < apportionLoops && size() > 0; loop++ {
			synctestutils.MustRunOnceAfter(t, autoscaler, apportionUnneeded+time.Second)
		}
		answer.After = size()
	})
	return answer
}
