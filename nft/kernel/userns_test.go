package kernel_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
)

// inUserNamespace is the environment variable of the process that TestInUserNamespace
// starts. Its value is net.core.wmem_max.
const inUserNamespace = "NFTPROXY_TEST_USER_NAMESPACE"

// Without privileges over the first user namespace, the send buffer cannot grow beyond
// wmem_max. A large batch goes in as several transactions.
func TestInUserNamespace(t *testing.T) {
	if limit := os.Getenv(inUserNamespace); limit != "" {
		n, err := strconv.Atoi(limit)
		must(t, err)
		splitBatch(t, n)
		return
	}
	if testing.Short() {
		t.Skip("-short: a batch larger than wmem_max takes seconds; TestTooLargeToSend splits a small one")
	}
	// The test reads wmem_max here, since some kernels (6.1) show it only in the first
	// network namespace.
	limit, err := os.ReadFile("/proc/sys/net/core/wmem_max")
	must(t, err)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInUserNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), inUserNamespace+"="+strings.TrimSpace(string(limit)))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) && os.Getenv("CI") == "" && os.Getenv("REQUIRE_PRIVILEGED") == "" {
		t.Skipf("user namespaces are not permitted: %v", err)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}

// splitBatch applies a batch that needs more bytes than limit, which is wmem_max.
func splitBatch(t *testing.T, limit int) {
	c, err := kernel.Open(kernel.Config{})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	// The buffer holds twice wmem_max, so the batch has half as much again.
	var elements []nft.Element
	comment := strings.Repeat("x", nft.MaxComment)
	for i := range 3 * limit / (len(comment) + 16) {
		elements = append(elements, nft.Element{Set: "addresses", Key: addrValue(nft.IPv4, i), Comment: comment})
	}
	p := &nft.Program{
		IPv4: newTable(nft.IPv4, sets(), nil, map[string]*nft.Part{"p": nft.NewPart(elements, nil)}),
		IPv6: newTable(nft.IPv6, nil, nil, nil),
	}
	batch := load(p)
	before, err := c.Generation()
	must(t, err)
	must(t, c.Apply(batch))
	after, err := c.Generation()
	must(t, err)
	if after-before < 2 {
		t.Errorf("%d transactions: the send buffer was not limited", after-before)
	}
	got, err := c.Read(p)
	must(t, err)
	want := nft.NewModel()
	must(t, strict.Apply(want, batch))
	if got.String() != want.String() {
		t.Error("what was read differs from what was applied")
	}

	must(t, c.DeleteTables(tableName))
	batch.Ops = append(batch.Ops, nft.DeleteChain{Table: table(nft.IPv4), Chain: "nowhere"})
	err = c.Apply(batch)
	var refused *kernel.BatchError
	if !errors.As(err, &refused) || !refused.Partial || !errors.Is(err, kernel.ErrOutcomeUnknown) ||
		!errors.Is(err, unix.ENOENT) {
		t.Errorf("error in the last of several transactions: %v", err)
	}
}
