package result

import (
	"fmt"
	"strings"
	"time"
)

// The questions about the control plane.
const (
	FirstProgram    = "first program"
	StartToProgram  = "process start to first program"
	Restart         = "restart with nothing changed"
	ChangeSeen      = "one-endpoint change, API write to kernel"
	ChangeInside    = "one-endpoint change, inside the process"
	ChangeCPU       = "CPU per one-endpoint change"
	FirstProgramCPU = "CPU of the first program"
	PeakMemory      = "peak memory"
	Churn100        = "100 endpoint changes a second, lag"
	Churn1000       = "1,000 endpoint changes a second, lag"
	Churn100CPU     = "100 endpoint changes a second, CPU"
	Churn1000CPU    = "1,000 endpoint changes a second, CPU"
)

// The questions about what a node pays, beside FirstProgram, StartToProgram and
// FirstProgramCPU.
const (
	NodeMemory = "memory at rest"
	nodeCPU    = "CPU of a node in 30 s"
)

// NodeTime is how long a node is at rest, or has changes at one rate.
const NodeTime = 30 * time.Second

// NodeRates are the numbers of changes a second that a node goes through.
func NodeRates() []int { return []int{2, 20, 100} }

// NodeCPU is the question for the CPU time of a node at a number of changes a second.
func NodeCPU(rate int) string {
	if rate == 0 {
		return nodeCPU + ", at rest"
	}
	return fmt.Sprintf("%s, %d changes a second", nodeCPU, rate)
}

func nodeCPUs() (questions []string) {
	for _, rate := range NodeRates() {
		questions = append(questions, NodeCPU(rate))
	}
	return questions
}

// The questions about the data plane. ConnectionSetup is asked for several ways to a
// Service. Each is a question of its own: ConnectionSetup + ", " + way.
const (
	ConnectionSetup = "connection set-up"
)

// The questions about UDP flows in a rolling update.
const (
	StaleFlows     = "UDP flows in a rolling update, sync to last deletion"
	StaleFlowsSeen = "UDP flows in a rolling update, API write to last deletion"
	StaleFlowsCPU  = "CPU of a rolling update with UDP flows"
)

// Question is the subject of a table.
type Question struct {
	Name string
	// About says in a sentence where the measured time begins and ends.
	About string
}

// Asked lists the questions about the control plane, in the order of a report.
func Asked() []Question {
	return []Question{
		{FirstProgram, "from synced informers to all services in the kernel; for bare netlink the loading of the same " +
			"elements"},
		{StartToProgram, "from the start of the process to all services in the kernel"},
		{FirstProgramCPU, "CPU time of the process and its children from its start to the first program"},
		{Restart, "from synced informers to the end of the first sync, with everything in the kernel already"},
		{ChangeSeen,
			"from the request to the API server to the kernel's notice of the new endpoint; the proxy is at rest before"},
		{ChangeInside, "from the event to the committed transaction"},
		{ChangeCPU, "CPU time of the process and its children, divided by the changes"},
		{Churn100,
			"from the request to the API server to the kernel's notice; for a minute, or as long as the cell's note says"},
		{Churn100CPU, "of the process and its children"},
		{Churn1000, "from the request to store it to the kernel's notice; written to etcd past the API server, which " +
			"serves it: its own writing would take the machine; for a minute, or as long as the cell's note says"},
		{Churn1000CPU, "of the process and its children"},
		{StaleFlows, "100 endpoints, one replaced every 100 ms: from the kernel's notice of the rules without an endpoint " +
			"to its notice of the end of the last conntrack entry that led there"},
		{StaleFlowsSeen, "the same from the request to the API server"},
		{StaleFlowsCPU, "of the process and its children, from the first change until no flow leads to an endpoint that " +
			"has gone"},
		{PeakMemory, "resident, of the process and the children that it had at the same time, up to the first program and " +
			"through one-endpoint changes"},
		{NodeMemory, "resident, of the process and its children, 35 s after the first program; and the most of the start"},
		{nodeCPU, "of the process and its children, while single endpoints of Services all over the cluster are replaced " +
			"through the API server"},
	}
}

// AskedOfPackets lists the questions about the data plane, or the beginnings of their
// names.
func AskedOfPackets() []Question {
	const turns = "; the median of many short turns, and of the ratios to those that had the same turn"
	return []Question{
		{ConnectionSetup, "how long connect() takes, to a server that accepts nothing meanwhile, on a thread that is not " +
			"interrupted" + turns},
	}
}

// About is the sentence of a question, "" if it has none.
func About(question string) string {
	for _, q := range append(Asked(), AskedOfPackets()...) {
		if q.Name == question || strings.HasPrefix(question, q.Name+", ") {
			return q.About
		}
	}
	return ""
}
