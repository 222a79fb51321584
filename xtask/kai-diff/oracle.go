// The oracle asks KAI Scheduler itself what it decides.
//
// `cargo xtask kai-diff` builds this program inside a checkout of KAI (with `go build -overlay`, so that nothing is
// written there). It reads clusters from its standard input, one JSON object a line, in the format of
// docs/development/kai-cases.md. For each it opens the session that KAI's own tests open, runs KAI's actions once, and
// writes one line: where each pod stands.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"go.uber.org/mock/gomock"
	v1 "k8s.io/api/core/v1"

	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/common_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/eviction_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/pod_status"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/podgroup_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/api/resource_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/cache"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/cache/cluster_info"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/conf"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/conf_util"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/framework"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils/jobs_fake"
	"github.com/kai-scheduler/KAI-scheduler/pkg/scheduler/test_utils/nodes_fake"
)

// Enough of every call of the cache for the largest cluster.
const anyNumber = 1 << 30

// answer is a line of output: one of its fields is set.
type answer struct {
	Decided *decided `json:"decided,omitempty"`
	// Cannot says why the fakes of KAI's tests can't express the cluster.
	Cannot string `json:"cannot,omitempty"`
	// Error says how KAI failed.
	Error string `json:"error,omitempty"`
}

type decided struct {
	// Tasks says where each pod stands after the actions.
	Tasks map[string]standing `json:"tasks"`
	// TakenBack names the pods that waited before and were evicted all the same.
	TakenBack []string `json:"taken_back"`
	// EvictedTwice names the pods that were evicted more than once: after a move, or because they were counted twice.
	EvictedTwice []string `json:"evicted_twice"`
}

type standing struct {
	Status    string   `json:"status"`
	Node      string   `json:"node,omitempty"`
	GPUGroups []string `json:"gpu_groups,omitempty"`
}

// evictions notes which pods KAI evicts.
type evictions struct {
	cache.Cache
	names []string
}

// Evict is what KAI calls when a plan is final.
func (e *evictions) Evict(
	pod *v1.Pod, job *podgroup_info.PodGroupInfo, metadata eviction_info.EvictionMetadata, message string,
) error {
	e.names = append(e.names, pod.Name)
	return e.Cache.Evict(pod, job, metadata, message)
}

// reporter makes a failed mock a panic, which [ask] reports.
type reporter struct{}

func (reporter) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (reporter) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func main() {
	// With -vv 5, KAI's own log says why.
	flag.Parse()
	test_utils.InitTestingInfrastructure()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return
		}
		if err := out.Encode(ask(line)); err != nil {
			os.Exit(1)
		}
	}
}

// ask runs one cluster.
func ask(line []byte) (said answer) {
	defer func() {
		if failure := recover(); failure != nil {
			if reason, ok := failure.(inexpressible); ok {
				said = answer{Cannot: string(reason)}
			} else {
				said = answer{Error: fmt.Sprint(failure)}
			}
		}
	}()
	var given scenario
	if err := json.Unmarshal(line, &given); err != nil {
		return answer{Error: err.Error()}
	}
	ssn := open(&given)
	evicted := &evictions{Cache: ssn.Cache}
	ssn.Cache = evicted
	waited := map[string]bool{}
	for _, job := range ssn.ClusterInfo.PodGroupInfos {
		for id, task := range job.GetAllPodsMap() {
			waited[string(id)] = task.Status == pod_status.Pending
		}
	}
	for _, name := range given.Actions {
		action, found := framework.GetAction(name)
		if !found {
			return answer{Error: "unknown action " + name}
		}
		action.Execute(ssn)
	}
	tasks := map[string]standing{}
	for _, job := range ssn.ClusterInfo.PodGroupInfos {
		for id, task := range job.GetAllPodsMap() {
			tasks[string(id)] = standing{
				Status: task.Status.String(), Node: task.NodeName, GPUGroups: task.GPUGroups,
			}
		}
	}
	takenBack, evictedTwice := []string{}, []string{}
	seen := map[string]bool{}
	for _, name := range evicted.names {
		if waited[name] {
			takenBack = append(takenBack, name)
		}
		if seen[name] {
			evictedTwice = append(evictedTwice, name)
		}
		seen[name] = true
	}
	return answer{Decided: &decided{Tasks: tasks, TakenBack: takenBack, EvictedTwice: evictedTwice}}
}

// open makes a session as KAI's test_utils.BuildSession does, but with queues that have everything the format knows.
func open(given *scenario) *framework.Session {
	now := time.Now()
	given.refuseWhatFakesLack()
	config, err := conf_util.ResolveConfigurationFromFile("")
	if err != nil {
		panic(err)
	}
	topologies := given.topologies()
	metadata := test_utils.TestTopologyBasic{
		Name:       given.ID,
		Topologies: topologies,
		Mocks: &test_utils.TestMock{CacheRequirements: &test_utils.CacheMocking{
			NumberOfCacheBinds:      anyNumber,
			NumberOfCacheEvictions:  anyNumber,
			NumberOfPipelineActions: anyNumber,
		}},
	}
	vectorMap := resource_info.NewResourceVectorMap()
	jobs, tasksOfNodes, _ := jobs_fake.BuildJobsAndTasksMaps(given.jobs(), vectorMap)
	for i := range given.Jobs {
		wanted := &given.Jobs[i]
		wanted.setTimes(now, jobs[common_info.PodGroupID(wanted.Name)])
	}
	affinity := cache.NewK8sClusterPodAffinityInfo()
	nodes := nodes_fake.BuildNodesInfoMap(given.nodes(), tasksOfNodes, affinity, vectorMap)
	queues := given.queues(now)
	cluster_info.UpdateQueueHierarchy(queues)

	settings := test_utils.TestSessionConfig{
		Plugins:               given.plugins(config.Tiers),
		ScenarioSearchBudgets: config.ScenarioSearchBudgets,
	}
	controller := gomock.NewController(reporter{})
	ssn := test_utils.CreateFakeSession(&settings, nodes, jobs, queues, metadata, controller, true, topologies,
		affinity, vectorMap)
	ssn.OverrideMaxNumberConsolidationPreemptees(given.Settings.maxConsolidated())
	ssn.OverrideAllowConsolidatingReclaim(given.Settings.consolidatingReclaim())
	ssn.OverrideGlobalDefaultStalenessGracePeriod(seconds(given.Settings.StalenessGracePeriodS))
	return ssn
}

// plugins are those that the cluster names, or KAI's usual ones with its choice of placement.
func (s *scenario) plugins(usual []conf.Tier) []conf.Tier {
	var names []string
	for _, plugin := range s.Settings.Plugins {
		names = append(names, plugin.Name)
	}
	if names == nil {
		for _, tier := range usual {
			for _, plugin := range tier.Plugins {
				names = append(names, plugin.Name)
			}
		}
	}
	var plugins []conf.PluginOption
	hasPredicates := false
	for _, name := range names {
		option := conf.PluginOption{Name: name}
		switch name {
		case "predicates":
			hasPredicates = true
			if !s.Settings.predicates() {
				continue
			}
		case "gpupack", "gpuspread":
			if s.Settings.GPUPlacement != "" {
				option.Name = "gpu" + s.Settings.GPUPlacement
			}
		case "nodeplacement":
			option.Arguments = framework.PluginArguments{"cpu": "binpack", "gpu": "binpack"}
			if placement := s.Settings.NodePlacement; placement != nil {
				option.Arguments = framework.PluginArguments{"cpu": placement.CPU, "gpu": placement.GPU}
			}
		}
		plugins = append(plugins, option)
	}
	if s.Settings.predicates() && !hasPredicates {
		plugins = append([]conf.PluginOption{{Name: "predicates"}}, plugins...)
	}
	return []conf.Tier{{Plugins: plugins}}
}
