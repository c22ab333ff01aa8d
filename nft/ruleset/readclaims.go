package ruleset

import (
	"nftproxy/model/service"
	"nftproxy/nft"
)

// ReadClaims returns the claims that a table serves or refuses, each with the name of its Service as far as the comment
// has it. read reads one set of the table, nil for one that the table does not have. The cost grows with the claims,
// not with their endpoints. Ranges of ports are one claim for each address and protocol, whatever the ranges.
func ReadClaims(f nft.Family, read func(set string) (*nft.SetContents, error)) (map[service.Claim]service.Name, error) {
	claims := map[service.Claim]service.Name{}
	for _, a := range accessWithRanges() {
		s, err := read(a.verdicts)
		if err != nil {
			return nil, err
		}
		if s == nil || len(s.Set.Key) == 0 {
			continue
		}
		for _, e := range s.Elements {
			claims[a.claimOf(f, e.Key)] = service.Name(NameInComment(e.Comment).Service)
		}
	}
	return claims, nil
}

// claimOf returns the claim that a key of the access's maps stands for.
func (a *access) claimOf(f nft.Family, key nft.Value) service.Claim {
	fields := fieldReader{key, f}
	addr := f.Unspecified()
	if a.key[0] == nft.Daddr {
		addr = fields.addr()
	}
	c := service.Claim{Addr: addr, Protocol: fields.protocol()}
	if !a.keepsPort {
		c.Port = fields.port()
	}
	return c
}
