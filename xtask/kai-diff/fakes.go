package main

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kaiv1alpha1 "github.com/kai-scheduler/KAI-scheduler/pkg/apis/kai/v1alpha1"
	enginev2 "github.com/kai-scheduler/KAI-scheduler/pkg/apis/scheduling/v2"
	"github.com/kai-scheduler/KAI-scheduler/pkg/apis/scheduling/v2alpha2"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/common_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/pod_status"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/podgroup_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/podgroup_info/subgroup_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/queue_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/topology_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils/jobs_fake"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils/nodes_fake"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils/tasks_fake"
)

// inexpressible says what the fakes of KAI's tests have no field for.
type inexpressible string

// refuseWhatFakesLack panics with the first thing that KAI's fakes have no field for.
func (s *scenario) refuseWhatFakesLack() {
	refuse := func(is bool, what string) {
		if is {
			panic(inexpressible(what))
		}
	}
	refuse(len(s.DRA.Claims) > 0 || len(s.DRA.Slices) > 0, "resource claims")
	for _, node := range s.Nodes {
		refuse(node.DRAGPUs > 0, "resource claims")
		refuse(node.MIGStrategy != "", "MIG")
		refuse(node.NUMA != nil && string(*node.NUMA) != "null", "NUMA zones")
		refuse(len(node.Cards) > 0, "cards one by one")
	}
	for _, job := range s.Jobs {
		for i, task := range job.Tasks {
			refuse(task.ID != fmt.Sprintf("%s-%d", job.Name, i), "names of pods")
			refuse(task.GPU.Kind == "mig" || task.LegacyMIG, "MIG")
			refuse(len(task.ResourceClaims) > 0, "resource claims")
			refuse(task.NUMAObserved != nil && string(*task.NUMAObserved) != "null", "NUMA zones")
			first := job.Tasks[0]
			refuse(task.GPU.Kind != first.GPU.Kind, "pods of one job that ask for different things")
			refuse(task.GPU.Kind != "whole" && (task.GPU.Portion != first.GPU.Portion ||
				task.GPU.MemoryMiB != first.GPU.MemoryMiB ||
				ptr.Deref(task.GPU.NumDevices, 1) != ptr.Deref(first.GPU.NumDevices, 1)),
				"pods of one job that ask for different things")
			refuse(task.cpu() != first.cpu() || task.mem() != first.mem(), "pods of one job that ask for different things")
			refuse((task.cpu() == 0 || task.mem() == 0) && !first.isBestEffort(), "pods without CPU or memory")
		}
	}
}

func (t *task) isBestEffort() bool { return t.GPU.Kind == "none" && t.cpu() == 0 && t.mem() == 0 }

func duration(amount *float64) *metav1.Duration {
	if amount == nil {
		return nil
	}
	return &metav1.Duration{Duration: seconds(*amount)}
}

func (s *scenario) nodes() map[string]nodes_fake.TestNodeBasic {
	nodes := map[string]nodes_fake.TestNodeBasic{}
	for _, given := range s.Nodes {
		// The fake reads this number as cores.
		nodes[given.Name] = nodes_fake.TestNodeBasic{
			GPUs: given.GPUs, GPUMemory: given.GPUMemoryMiB, CPUMillis: given.CPUMillis / 1000,
			CPUMemory: given.MemBytes, MaxTaskNum: given.MaxPods, Labels: given.Labels,
		}
	}
	return nodes
}

func (s *scenario) topologies() []*kaiv1alpha1.Topology {
	var topologies []*kaiv1alpha1.Topology
	for _, given := range s.Topologies {
		made := &kaiv1alpha1.Topology{ObjectMeta: metav1.ObjectMeta{Name: given.Name}}
		for _, level := range given.Levels {
			made.Spec.Levels = append(made.Spec.Levels, kaiv1alpha1.TopologyLevel{NodeLabel: level})
		}
		topologies = append(topologies, made)
	}
	return topologies
}

func (s *scenario) queues(now time.Time) map[common_info.QueueID]*queue_info.QueueInfo {
	queues := map[common_info.QueueID]*queue_info.QueueInfo{}
	orNone := func(amount *float64) float64 { return ptr.Deref(amount, common_info.NoMaxAllowedResource) }
	// CPU is in milli-CPU and memory in megabytes in the queues of KAI.
	megabytes := func(amount *float64) float64 {
		if amount == nil || *amount < 0 {
			return common_info.NoMaxAllowedResource
		}
		return *amount / 1e6
	}
	for _, given := range s.Queues {
		made := queue_info.NewQueueInfo(&enginev2.Queue{
			ObjectMeta: metav1.ObjectMeta{
				Name:              given.Name,
				UID:               types.UID(given.Name),
				CreationTimestamp: metav1.Time{Time: now.Add(time.Minute * time.Duration(given.CreatedOrder))},
			},
			Spec: enginev2.QueueSpec{
				DisplayName: given.Name, ParentQueue: given.Parent, Priority: given.Priority,
				PreemptMinRuntime: duration(given.PreemptMinRuntimeS),
				ReclaimMinRuntime: duration(given.ReclaimMinRuntimeS),
				Resources: &enginev2.QueueResources{
					GPU: enginev2.QueueResource{
						Quota: given.DeservedGPUs, Limit: orNone(given.MaxGPUs), OverQuotaWeight: given.Weight,
					},
					CPU: enginev2.QueueResource{
						Quota: orNone(given.DeservedCPUMillis), Limit: orNone(given.MaxCPUMillis),
						OverQuotaWeight: ptr.Deref(given.CPUWeight, 1),
					},
					Memory: enginev2.QueueResource{
						Quota: megabytes(given.DeservedMemBytes), Limit: megabytes(given.MaxMemBytes),
						OverQuotaWeight: ptr.Deref(given.MemWeight, 1),
					},
				},
			},
		})
		queues[made.UID] = made
	}
	return queues
}

func (s *scenario) jobs() []*jobs_fake.TestJobBasic {
	var jobs []*jobs_fake.TestJobBasic
	for i := range s.Jobs {
		jobs = append(jobs, s.Jobs[i].made())
	}
	return jobs
}

func (j *job) made() *jobs_fake.TestJobBasic {
	made := &jobs_fake.TestJobBasic{
		Name: j.Name, QueueName: j.Queue, Priority: j.Priority, QOSClass: v1.PodQOSClass(j.QOSClass),
		Preemptibility:             v2alpha2.NonPreemptible,
		PreemptionDelay:            duration(j.PreemptionDelayS),
		PerJobStalenessGracePeriod: duration(j.StalenessGracePeriodS),
		RootSubGroupSet:            j.Subgroups.made(subgroup_info.RootSubGroupSetName),
	}
	if j.Preemptible {
		made.Preemptibility = v2alpha2.Preemptible
	}
	if j.StaleForS != nil {
		made.StaleDuration = ptr.To(seconds(*j.StaleForS))
	}
	for _, given := range j.Tasks {
		made.Tasks = append(made.Tasks, given.made())
	}
	if len(j.Tasks) == 0 {
		return made
	}
	first := j.Tasks[0]
	made.IsBestEffortJob = first.isBestEffort()
	made.RequiredCPUsPerTask = first.cpu() / 1000
	made.RequiredMemoryPerTask = first.mem()
	switch first.GPU.Kind {
	case "fraction":
		made.RequiredGPUsPerTask = first.GPU.Portion
		made.RequiredMultiFractionDevicesPerTask = first.GPU.NumDevices
	case "memory":
		made.RequiredGpuMemory = first.GPU.MemoryMiB
		made.RequiredMultiFractionDevicesPerTask = first.GPU.NumDevices
	}
	return made
}

func (t *task) made() *tasks_fake.TestTaskBasic {
	made := &tasks_fake.TestTaskBasic{
		SubGroupName: t.Subgroup, State: status(t.State), NodeName: t.Node, NodeAffinityNames: t.NodeAffinity,
		Priority: t.OrderPriority,
	}
	if made.SubGroupName == "" {
		made.SubGroupName = podgroup_info.DefaultSubGroup
	}
	if t.GPU.Kind == "whole" {
		made.RequiredGPUs = ptr.To(int64(t.GPU.GPUs))
	}
	for _, name := range t.GPUGroups {
		// Stands for a card of its own, which KAI gives a name.
		if !strings.HasPrefix(name, "auto:") {
			made.GPUGroups = append(made.GPUGroups, name)
		}
	}
	if affinity := t.PodAffinity; affinity != nil {
		made.PodAffinityLabels = affinity.Labels
		made.PodAffinityTopologyKey = affinity.AffinityKey
		made.PodAntiAffinityTopologyKey = affinity.AntiAffinityKey
	}
	return made
}

func status(name string) pod_status.PodStatus {
	for status := pod_status.Pending; status <= pod_status.StuckInReleasing; status <<= 1 {
		if status.String() == name {
			return status
		}
	}
	panic("unknown status " + name)
}

func (g *group) made(name string) *subgroup_info.SubGroupSet {
	made := subgroup_info.NewSubGroupSet(name, g.Topology.made())
	made.SetMinSubGroup(g.MinSubGroups)
	for _, sub := range g.Groups {
		made.AddSubGroup(sub.made(sub.Name))
	}
	for _, set := range g.PodSets {
		made.AddPodSet(subgroup_info.NewPodSet(set.Name, set.MinAvailable, set.Topology.made()))
	}
	return made
}

func (c *constraint) made() *topology_info.TopologyConstraintInfo {
	if c == nil || c.Topology == "" {
		return nil
	}
	return &topology_info.TopologyConstraintInfo{
		Topology: c.Topology, RequiredLevel: c.Required, PreferredLevel: c.Preferred,
	}
}

// setTimes sets what the fakes have only in whole minutes, or not at all.
func (j *job) setTimes(now time.Time, made *podgroup_info.PodGroupInfo) {
	created := metav1.Time{Time: now.Add(-seconds(60 * ptr.Deref(j.AgeMinutes, 1)))}
	made.CreationTimestamp = created
	made.PodGroup.CreationTimestamp = created
	if j.LastStartAgeS != nil {
		made.LastStartTimestamp = ptr.To(now.Add(-seconds(*j.LastStartAgeS)))
	}
}
