package scenario

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// ClusterCIDR has the addresses of pods unless a scenario's flags say otherwise.
const ClusterCIDR = "10.0.0.0/8,fd00:10::/32"

// CommandLine returns the flags for the proxy: those of the scenario behind the one for
// the cluster CIDR, so that the scenario's own counts if it has one.
func (s *Scenario) CommandLine() []string {
	flags := append([]string{"--cluster-cidr=" + ClusterCIDR}, s.Flags...)
	return flags
}

// Config returns the configuration that the flags give.
func (s *Scenario) Config() (ruleset.Config, error) {
	cfg := ruleset.Config{Table: ruleset.DefaultTable}
	f := pflag.NewFlagSet(s.Name, pflag.ContinueOnError)
	cidrs := f.String("cluster-cidr", ClusterCIDR, "")
	mode := f.String("detect-local-mode", "ClusterCIDR", "")
	bridge := f.String("pod-bridge-interface", "", "")
	prefix := f.String("pod-interface-name-prefix", "", "")
	nodePorts := f.StringSlice("nodeport-addresses", nil, "")
	f.BoolVar(&cfg.MasqueradeAll, "masquerade-all", false, "")
	noMasquerade := f.StringSlice("nftproxy-no-masquerade-cidrs", nil, "")
	f.BoolVar(&cfg.MasqueradeToNode, "nftproxy-masquerade-to-node", false, "")
	f.BoolVar(&cfg.AnswerPing, "nftproxy-answer-ping", false, "")
	masqueradeBit := f.Int8("iptables-masquerade-bit", -1, "")
	f.String(balanceFlag, "", "") // Balance reads it
	err := f.Parse(s.Flags)
	if err != nil {
		return cfg, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	for _, text := range *noMasquerade {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return cfg, fmt.Errorf("scenario %s: --nftproxy-no-masquerade-cidrs: %w", s.Name, err)
		}
		cfg.NoMasquerade = append(cfg.NoMasquerade, cidr)
	}
	if *masqueradeBit >= 0 {
		cfg.MasqueradeMark = 1 << *masqueradeBit
	}
	switch *mode {
	case "ClusterCIDR":
		for text := range strings.SplitSeq(*cidrs, ",") {
			if text == "" {
				continue
			}
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				return cfg, fmt.Errorf("scenario %s: --cluster-cidr: %w", s.Name, err)
			}
			cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, cidr)
		}
	case "BridgeInterface":
		cfg.PodInterface = service.Interface{Name: *bridge}
	case "InterfaceNamePrefix":
		cfg.PodInterface = service.Interface{Name: *prefix, Prefix: true}
	case "NodeCIDR":
		cfg.NodeCIDR = true
	default:
		return cfg, fmt.Errorf("scenario %s: --detect-local-mode: %q", s.Name, *mode)
	}
	if cfg.NodePortAddresses, err = service.ParseNodePortAddresses(*nodePorts); err != nil {
		return cfg, fmt.Errorf("scenario %s: --nodeport-addresses: %w", s.Name, err)
	}
	return cfg, nil
}

const balanceFlag = "nftproxy-balance"

// Balance is that of Services that ask for none.
func (s *Scenario) Balance() (service.Balance, error) {
	var o service.Options
	for _, flag := range s.Flags {
		if word, ok := strings.CutPrefix(flag, "--"+balanceFlag+"="); ok {
			err := o.Set("balance", word)
			return o.Balance, err
		}
	}
	return service.ByRandom, nil
}

// Bridge is the name of the bridge whose ports are the node's pods. It is empty where
// each pod has a link of its own.
func (s *Scenario) Bridge() string {
	for _, flag := range s.Flags {
		if name, ok := strings.CutPrefix(flag, "--pod-bridge-interface="); ok {
			return name
		}
	}
	return ""
}

// PodInterface is the node's interface on which packets of a pod arrive.
func (s *Scenario) PodInterface() string {
	if bridge := s.Bridge(); bridge != "" {
		return bridge
	}
	return "veth0"
}
